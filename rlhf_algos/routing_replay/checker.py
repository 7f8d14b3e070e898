"""`check_router_replay`: does replay do on this model what training relies on?"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_algos.routing_replay.replayer import RouteReplayer

_IDENTITY_TOLERANCE = 1e-6
_ORDER_TOLERANCE = 1e-4
_SEQUENCES, _TOKENS = 2, 7


def check_router_replay(model: nn.Module, inputs: Mapping[str, Tensor] | None = None) -> None:
    """Checks the promises of routing replay on a model, for example after an adapter was written for its router.

    1. Recording, and replaying the model's own routes, leave outputs and gradients as they are (to 1e-6).
    2. The order of the experts within a row means nothing: gates belong to their experts. An adapter that replaces the
       experts but keeps the gates of the live choice fails here.
    3. Replaying other experts changes the outputs, and so does each layer by itself.
    4. A plain pass afterwards equals the one before, and an exception within a replayed pass leaves nothing behind.
    5. With activation checkpointing, if the model has it, gradients under replay are the same.

    Differences are relative to the largest absolute value. Parameters, their `.grad` and the training mode are as
    before when it returns. Use a small model: it is copied, and runs about ten passes and one per layer.

    Args:
        model: called as `model(**inputs)`, returning a tensor or something with `logits` or `last_hidden_state`.
        inputs: keyword arguments of the call; None makes random `input_ids` below `model.config.vocab_size`.

    Raises:
        ValueError: no routers, or one without an adapter (see `find_routers`).
        AssertionError: the first broken promise, with the numbers.
    """
    check = _Check(model, inputs)
    with _mode(model, training=False):
        check.own_routes()
        check.order_of_experts()
        check.other_routes()
        check.nothing_left_behind()
    _check_checkpointing(model, inputs)


class _Check:
    """The passes of one model on one input."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Tensor] | None) -> None:
        self.model = model
        self.name = type(model).__name__
        self.replayer = RouteReplayer(model)
        self.inputs = dict(inputs) if inputs is not None else _random_inputs(model)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with _mode(model, training=False):
            self.output, self.gradient = self.run(nullcontext())
            with self.replayer.recording() as scope, torch.no_grad():
                self._forward()
        self.routes = scope.live_routes

    def _forward(self) -> Tensor:
        output = self.model(**self.inputs)
        for attribute in ("logits", "last_hidden_state"):
            output = getattr(output, attribute, output)
        return output

    def run(self, scope: AbstractContextManager[Any]) -> tuple[Tensor, Tensor]:
        """The output, and the gradient of a fixed function of it with respect to all parameters, flat."""
        with scope:
            output = self._forward()
        # A loss that no symmetry makes insensitive: every output has its own weight.
        weight = torch.linspace(-1.0, 1.0, output.numel(), device=output.device).view_as(output)
        gradient = torch.autograd.grad(
            (output.float() * weight).sum(), self.parameters, allow_unused=True, materialize_grads=True
        )
        return output.detach().float(), torch.cat([part.float().flatten() for part in gradient])

    def own_routes(self) -> None:
        for what, scope in (
            ("recording routes", self.replayer.recording()),
            ("replaying the model's own routes", self.replayer.replaying(self.routes)),
        ):
            output, gradient = self.run(scope)
            self.near(output, self.output, what, "outputs", _IDENTITY_TOLERANCE)
            self.near(gradient, self.gradient, what, "gradients", _IDENTITY_TOLERANCE)

    def order_of_experts(self) -> None:
        if self.replayer.top_k > 1:
            output, _ = self.run(self.replayer.replaying(self.routes.flip(-1)))
            self.near(output, self.output, "the same experts in another order", "outputs", _ORDER_TOLERANCE)

    def other_routes(self) -> None:
        others = (self.routes + 1) % self.replayer.num_experts
        if self.replayer.top_k == self.replayer.num_experts:
            raise AssertionError(
                f"{self.name} sends every token to all of its {self.replayer.num_experts} experts: there is nothing to "
                "replay. Set router_replay='none'."
            )
        for layer, router in enumerate(self.replayer.routers):
            mixed = self.routes.clone()
            mixed[:, layer] = others[:, layer]
            output, _ = self.run(self.replayer.replaying(mixed))
            if torch.equal(output, self.output):
                raise AssertionError(
                    f"{self.name}: other experts in layer {layer} ({router.name}) do not change the outputs. Either "
                    f"{type(router.adapter).__name__} replaces something that the layer doesn't use, or the model's "
                    "experts are all equal: check a model with random weights."
                )

    def nothing_left_behind(self) -> None:
        class Stop(Exception):
            pass

        def stop(*_: Any) -> None:
            raise Stop

        hook = self.replayer.routers[-1].module.register_forward_hook(stop)
        try:
            self.run(self.replayer.replaying((self.routes + 1) % self.replayer.num_experts))
        except Stop:
            pass
        finally:
            hook.remove()
        output, _ = self.run(nullcontext())
        self.near(output, self.output, "a plain pass after a failed replayed one", "outputs", 0.0)

    def near(self, found: Tensor, expected: Tensor, what: str, of_what: str, tolerance: float) -> None:
        difference = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
        if not difference <= tolerance:
            raise AssertionError(
                f"{self.name}: {what} changes {of_what} by {difference:.3g} of their largest value; at most "
                f"{tolerance:g} is allowed."
            )


def _check_checkpointing(model: nn.Module, inputs: Mapping[str, Tensor] | None) -> None:
    if not getattr(model, "supports_gradient_checkpointing", False):
        return
    # Switching checkpointing on leaves hooks behind; the copy keeps them from the user's model.
    check = _Check(copy.deepcopy(model), inputs)
    others = (check.routes + 1) % check.replayer.num_experts
    with _mode(check.model, training=True):
        for module in check.model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False  # type: ignore[assignment]
        _, without = check.run(check.replayer.replaying(others))
        check.model.activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        _, checkpointed = check.run(check.replayer.replaying(others))
    check.near(checkpointed, without, "activation checkpointing under replay", "gradients", _IDENTITY_TOLERANCE)


def _random_inputs(model: nn.Module) -> dict[str, Tensor]:
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    if vocabulary is None:
        raise ValueError(f"{type(model).__name__} has no config.vocab_size; pass inputs to check_router_replay.")
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(vocabulary, (_SEQUENCES, _TOKENS), generator=generator).to(device)}


@contextmanager
def _mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
