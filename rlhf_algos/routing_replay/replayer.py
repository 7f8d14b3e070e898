"""A model whose routers can be given their experts."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_algos.routing_replay.adapters import FoundRouter, RouterAdapter, find_routers
from rlhf_algos.routing_replay.scope import ReplayScope, carry_routes_through_checkpoints, run_router


class RouteReplayer:
    """Finds the routers of a model and replays routes in its forward passes.

    ::

        replayer = RouteReplayer(causal_lm)
        with replayer.replaying(routes) as scope:
            output = causal_lm(input_ids)
        live = scope.live_routes

    A forward pass outside of a scope is not touched in any way. Make the replayer before DeepSpeed wraps the model.

    Args:
        model: a mixture-of-experts language model, or any module that contains its routers.

    Attributes:
        routers: what was found, in the order of the routes' layers.
        num_layers: mixture-of-experts layers, L.
        top_k: experts per token and layer, E.
        num_experts: experts to choose from in each layer.

    Raises:
        ValueError: the model is dense, has routers without an adapter, or its layers differ in experts or top-k.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.routers = find_routers(model)
        sizes = {(r.adapter.num_experts(r.module), r.adapter.top_k(r.module)) for r in self.routers}
        if len(sizes) != 1:
            raise ValueError(
                f"{type(model).__name__} has layers with different numbers of experts or of experts per token, "
                f"(num_experts, top_k) in {sorted(sizes)}; their routes don't fit into one array."
            )
        self.num_layers = len(self.routers)
        ((self.num_experts, self.top_k),) = sizes
        for found in self.routers:
            _make_replayable(found)

    @property
    def decoder_layers(self) -> tuple[int, ...]:
        """Index of the decoder layer of each router: what `moe_layer_routes` selects by."""
        indices = [router.decoder_layer for router in self.routers]
        if None in indices:
            name = self.routers[indices.index(None)].name
            raise ValueError(f"The name {name!r} does not tell the decoder layer of this router.")
        return tuple(index for index in indices if index is not None)

    def replaying(self, routes: Tensor | None) -> ReplayScope:
        """A scope in which one forward pass of the model uses the given experts.

        Args:
            routes: `[N, L, E]` integers, for each token of the forward pass (flattened batch first) and each
                mixture-of-experts layer the experts to use, in any order; or E times -1 to keep the live route there,
                as at the last position of a sequence (MATH 6.4). None replays nothing and records the live routes.

        Returns:
            A context manager, to be entered once, around exactly one forward pass. The backward pass may come at any
            time after it.

        Raises:
            TypeError: routes are no integer tensor.
            ValueError: shape, range, or an expert chosen twice for one token; names the first place.
        """
        if routes is not None:
            self._check(routes)
        return ReplayScope(self.routers, routes, prepare=lambda: carry_routes_through_checkpoints(self._model))

    def recording(self) -> ReplayScope:
        """A scope that replays nothing and records the live routes: `replaying(None)`."""
        return self.replaying(None)

    def _check(self, routes: Tensor) -> None:
        if not isinstance(routes, Tensor) or routes.dtype.is_floating_point or routes.dtype == torch.bool:
            kind = routes.dtype if isinstance(routes, Tensor) else type(routes).__name__
            raise TypeError(f"routes must be an integer tensor, got {kind}.")
        expected = (self.num_layers, self.top_k)
        if routes.dim() != 3 or tuple(routes.shape[1:]) != expected:
            raise ValueError(
                f"routes must have shape [tokens, {self.num_layers} mixture-of-experts layers, {self.top_k} experts], "
                f"got {tuple(routes.shape)}."
            )
        # Unsigned 16-bit tensors can't be sorted or compared.
        ordered = routes.long().sort(dim=-1).values
        kept_live = (ordered == -1).all(dim=-1)
        outside = ((ordered < 0) | (ordered >= self.num_experts)).any(dim=-1) & ~kept_live
        self._refuse(
            routes, outside, f"experts must lie in [0, {self.num_experts}), or all be -1 to keep the live route"
        )
        twice = (ordered[..., 1:] == ordered[..., :-1]).any(dim=-1) & ~kept_live
        self._refuse(routes, twice, "the experts of a token must differ; a row of equal ones was never recorded")

    def _refuse(self, routes: Tensor, bad: Tensor, why: str) -> None:
        if bool(bad.any()):
            token, layer = bad.nonzero()[0].tolist()
            raise ValueError(
                f"routes of token {token} in layer {layer} ({self.routers[layer].name}) are "
                f"{routes[token, layer].tolist()}: {why}. {int(bad.sum())} such rows in all."
            )


def _make_replayable(found: FoundRouter) -> None:
    """Gives the router a forward that asks for the active scope.

    By a subclass, not by an attribute on the module: a deep copy of the model (a reference policy) then runs on its own
    weights, and hooks, names and `isinstance` stay as they were.
    """
    cls = type(found.module)
    original = cls.__mro__[1] if issubclass(cls, _Replayable) else cls
    found.module.__class__ = _replayable_class(original, found.adapter)


class _Replayable:
    """Marks the subclasses made here."""


@functools.cache
def _replayable_class(router_class: type[nn.Module], adapter: RouterAdapter) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run_router(self, adapter, functools.partial(router_class.forward, self), args, kwargs)

    namespace = {"forward": forward, "__doc__": router_class.__doc__, "__module__": router_class.__module__}
    made = type(router_class.__name__, (router_class, _Replayable), namespace)
    made.__qualname__ = router_class.__qualname__
    return made
