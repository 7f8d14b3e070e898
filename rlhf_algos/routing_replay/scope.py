"""How routes reach the routers: a scope around one forward pass, which its recomputations enter again.

No routes are stored on the model. The active scopes stand in a context variable, so they belong to one thread and to
one `with` block. Activation checkpointing takes them along: torch's `checkpoint` asks its `context_fn` once per forward
for the context in which to recompute, and gets the scopes of that moment. Hence several micro-batches can be in flight,
and the recomputation may run in another thread (on a GPU, it does).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import noop_context_fn

from rlhf_algos.routing_replay.adapters import FoundRouter, RouterAdapter


class ReplayScope:
    """One forward pass of one model with given routes; made by `RouteReplayer.replaying` and entered once.

    ::

        with replayer.replaying(routes) as scope:
            model(...)
        live = scope.live_routes

    Args:
        routers: of the model, in the order of the routes' layers.
        routes: `[N, L, E]` integers, -1 where the live route is kept; None to replay nothing and only record.
        prepare: called on entry.
    """

    def __init__(
        self, routers: Sequence[FoundRouter], routes: Tensor | None, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self._routers = routers
        self._layers = {router.module: layer for layer, router in enumerate(routers)}
        self._routes = routes
        self._prepare = prepare
        self._live: list[Tensor | None] = [None] * len(routers)
        self._used: list[Tensor | None] = [None] * len(routers)
        self._token: Token[_Active | None] | None = None
        self._entered = False
        self.with_gradient = False

    @property
    def live_routes(self) -> Tensor:
        """`[N, L, E]` int64: what the routers would have chosen, given what was replayed in the layers below."""
        missing = [router.name for router, live in zip(self._routers, self._live, strict=True) if live is None]
        if missing:
            raise RuntimeError(f"No live routes yet: {missing[0]} has not run in this scope.")
        return torch.stack([live for live in self._live if live is not None], dim=1)

    @property
    def replayed(self) -> Tensor:
        """`[N, L]` bool: where the given routes took the place of the live ones."""
        if self._routes is None:
            return torch.zeros_like(self.live_routes[..., 0], dtype=torch.bool)
        # Unsigned 16-bit tensors can't be compared.
        return self._routes[..., 0].long() >= 0

    def __enter__(self) -> ReplayScope:
        if self._entered:
            raise RuntimeError("A ReplayScope is for one forward pass; call replaying() again for another one.")
        self._prepare()
        self._entered = True
        # Asked here: reentrant checkpointing switches gradients off within its forward.
        self.with_gradient = torch.is_grad_enabled()
        active = _active.get()
        self._token = _active.set(_Active((*(active.scopes if active else ()), self), recomputing=False))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            _active.reset(self._token)
            self._token = None
        if kind is None:
            missing = [router.name for router, used in zip(self._routers, self._used, strict=True) if used is None]
            if missing:
                raise RuntimeError(
                    f"{len(missing)} of {len(self._routers)} routers did not run within the replayed forward pass, "
                    f"{missing[0]} first, so nothing was replayed there. Either no forward pass of this model took "
                    "place in the scope, or its layers or kernels were exchanged after the RouteReplayer was made: "
                    "make it again."
                )

    def name_of(self, layer: int) -> str:
        """The name of a router in its model."""
        return self._routers[layer].name

    def layer_of(self, router: nn.Module) -> int | None:
        """The router's place in the routes; None if it isn't of this model."""
        return self._layers.get(router)

    def choose(self, layer: int, live: Tensor, *, recomputing: bool) -> Tensor:
        """The experts that a router has to use.

        Args:
            layer: the router's place in the routes.
            live: `[N, E]` integers, its own choice.
            recomputing: True within a backward pass. The experts of the forward pass are used again, whatever the
                recomputed live choice is.

        Returns:
            `[N, E]` int64.
        """
        name = self.name_of(layer)
        used = self._used[layer]
        if recomputing:
            if used is None:
                raise RuntimeError(f"{name} is recomputed, but it did not run in the forward pass of this scope.")
            return used
        if used is not None:
            raise RuntimeError(
                f"{name} ran twice within one replay scope. A scope is for one forward pass: run a reference or "
                "evaluation pass outside of it, and each micro-batch in a scope of its own."
            )
        live = live.detach().long()
        used = live
        if self._routes is not None:
            if len(self._routes) != len(live):
                raise ValueError(
                    f"The routes are of {len(self._routes)} tokens, but {name} routes {len(live)} tokens. Routes have "
                    "one row per token of the forward pass, batch first."
                )
            given = self._routes[:, layer].to(device=live.device, dtype=torch.int64)
            used = torch.where(given[:, :1] < 0, live, given)
        self._live[layer] = live
        self._used[layer] = used
        return used


@dataclass(frozen=True)
class _Active:
    """What the routers of this thread see: the entered scopes, and whether this is a recomputation."""

    scopes: tuple[ReplayScope, ...]
    recomputing: bool


_active: ContextVar[_Active | None] = ContextVar("rlhf_algos_active_replay_scopes", default=None)


def run_router(
    router: nn.Module,
    adapter: RouterAdapter,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A router's forward: as it is, or with the choice of the scope that its model is in."""
    kind = type(router).__name__
    active = _active.get()
    if active is None and _within_backward() and getattr(router, "replayed_with_gradient", False):
        raise RuntimeError(
            f"A {kind} is recomputed in a backward pass without the routes of its forward pass. Routing replay works "
            "with transformers' activation_checkpointing_enable({'use_reentrant': False}), and with "
            "torch.utils.checkpoint given context_fn=CarryRoutes(); not with another kind of checkpointing."
        )
    for scope in reversed(active.scopes if active else ()):
        layer = scope.layer_of(router)
        if layer is not None:
            break
    else:
        return forward(*args, **kwargs)
    assert active is not None
    recomputing = active.recomputing
    if scope.with_gradient:
        router.replayed_with_gradient = True  # type: ignore[assignment]
    calls = 0

    def choose(live: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise _miscounted(scope.name_of(layer), router, adapter, "more than one choice")
        return scope.choose(layer, live, recomputing=recomputing)

    output = adapter.run(router, forward, choose, args, kwargs)
    if calls == 0:
        raise _miscounted(scope.name_of(layer), router, adapter, "no choice")
    return output


def _miscounted(name: str, router: nn.Module, adapter: RouterAdapter, seen: str) -> RuntimeError:
    return RuntimeError(
        f"{name} ({type(router).__name__}) should choose experts once in its forward, but {type(adapter).__name__} saw "
        f"{seen}. Its is_choice must accept exactly one call of torch.topk; if the router doesn't call torch.topk, "
        "override the adapter's run."
    )


def _within_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class CarryRoutes:
    """A `context_fn` for `torch.utils.checkpoint.checkpoint(use_reentrant=False)`: recomputes with the same routes.

    Args:
        inner: another `context_fn` whose contexts are entered as well.
    """

    def __init__(self, inner: Callable[[], tuple[Any, Any]] = noop_context_fn) -> None:
        self._inner = inner

    def __call__(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Contexts of a forward that starts now, and of its recomputations."""
        forward, recompute = self._inner()
        active = _active.get()
        return forward, _Recomputation(active.scopes if active is not None else (), recompute)


class _Recomputation:
    """Enters the scopes of a forward pass again, each time its activations are recomputed."""

    def __init__(self, scopes: tuple[ReplayScope, ...], inner: AbstractContextManager[Any]) -> None:
        self._active = _Active(scopes, recomputing=True)
        self._inner = inner
        self._tokens: list[Token[_Active | None]] = []

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._tokens.append(_active.set(self._active))

    def __exit__(self, *error: Any) -> bool | None:
        _active.reset(self._tokens.pop())
        return self._inner.__exit__(*error)


def carry_routes_through_checkpoints(model: nn.Module) -> None:
    """Has transformers' activation checkpointing, where it is switched on, recompute with the forward's routes.

    Raises:
        ValueError: checkpointing is reentrant, or of an unknown kind.
    """
    for name, module in model.named_modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if function is None or not getattr(module, "gradient_checkpointing", False):
            continue
        keywords = function.keywords if isinstance(function, functools.partial) else {}
        if isinstance(keywords.get("context_fn"), CarryRoutes):
            continue
        if keywords.get("use_reentrant") is not False:
            raise ValueError(
                f"{name or type(model).__name__} checkpoints activations with {function}: its recomputation can't be "
                "given the routes of its forward pass, and gradients would silently be of other experts. Call "
                "activation_checkpointing_enable({'use_reentrant': False})."
            )
        carry = CarryRoutes(keywords.get("context_fn", noop_context_fn))
        module._gradient_checkpointing_func = functools.partial(function, context_fn=carry)
