"""What is recomputed in the backward pass uses the routes of its forward pass."""

import contextlib
import functools
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rlhf_algos.routing_replay import RouteReplayer
from rlhf_algos.routing_replay.scope import CarryRoutes
from tests.routing_replay.models import (
    ARCHITECTURES,
    gradients,
    largest_difference,
    make_model,
    next_token_logprobs,
    routes_for,
)

MICRO_BATCHES = [torch.tensor([[5, 9, 3, 7]]), torch.tensor([[2, 8, 1, 4]])]


def model_for(architecture, *, checkpointing, **keywords):
    model = make_model(architecture).train()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False, **keywords})
    return model


def accumulated_gradients(model):
    found = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def forward_loss(model, replayer, number, architecture, routes="given"):
    tokens = MICRO_BATCHES[number]
    given = routes_for(architecture, tokens.numel(), seed=number) if routes == "given" else routes
    with replayer.replaying(given):
        return -next_token_logprobs(model, tokens).mean()


def one_after_another(model, replayer, architecture):
    for number in range(2):
        forward_loss(model, replayer, number, architecture).backward()
    return accumulated_gradients(model)


def both_in_flight(model, replayer, architecture):
    losses = [forward_loss(model, replayer, number, architecture) for number in range(2)]
    for loss in losses:
        loss.backward()
    return accumulated_gradients(model)


@pytest.mark.parametrize("schedule", [one_after_another, both_in_flight])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_are_the_same_with_and_without_checkpointing(architecture, schedule):
    plain, checkpointed = (model_for(architecture, checkpointing=on) for on in (False, True))
    expected = one_after_another(plain, RouteReplayer(plain), architecture)
    found = schedule(checkpointed, RouteReplayer(checkpointed), architecture)
    assert checkpointed.is_activation_checkpointing
    assert max(float(g.abs().max()) for g in expected.values()) > 0.1
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) <= 1e-6


def test_the_layers_really_are_recomputed():
    """Otherwise the test above compares a thing with itself."""
    model = model_for("qwen3_moe", checkpointing=True)
    replayer = RouteReplayer(model)
    calls = []
    # Before the experts, since a recomputation stops as soon as it has all it needs.
    model.model.layers[1].mlp.experts.register_forward_pre_hook(lambda *_: calls.append(1))
    loss = forward_loss(model, replayer, 0, "qwen3_moe")
    assert len(calls) == 1
    loss.backward()
    assert len(calls) == 2


def test_the_recomputation_may_run_in_another_thread():
    """On a GPU autograd calls it from a thread of its own, in which no scope was ever entered."""
    plain, checkpointed = (model_for("qwen3_moe", checkpointing=on) for on in (False, True))
    expected = both_in_flight(plain, RouteReplayer(plain), "qwen3_moe")
    replayer = RouteReplayer(checkpointed)
    losses = [forward_loss(checkpointed, replayer, number, "qwen3_moe") for number in range(2)]
    for loss in losses:
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert largest_difference(accumulated_gradients(checkpointed), expected) <= 1e-6


def test_a_backward_within_another_scope_uses_its_own_routes():
    plain, checkpointed = (model_for("qwen3_moe", checkpointing=on) for on in (False, True))
    expected = both_in_flight(plain, RouteReplayer(plain), "qwen3_moe")
    replayer = RouteReplayer(checkpointed)
    first = forward_loss(checkpointed, replayer, 0, "qwen3_moe")
    with replayer.replaying(routes_for("qwen3_moe", 4, seed=1)):
        second = -next_token_logprobs(checkpointed, MICRO_BATCHES[1]).mean()
        first.backward()
    second.backward()
    assert largest_difference(accumulated_gradients(checkpointed), expected) <= 1e-6


def test_a_live_pass_between_a_replayed_forward_and_its_backward():
    plain, checkpointed = (model_for("qwen3_moe", checkpointing=on) for on in (False, True))
    expected = gradients(plain, forward_loss(plain, RouteReplayer(plain), 0, "qwen3_moe"))
    expected_live = gradients(plain, -next_token_logprobs(plain, MICRO_BATCHES[1]).mean())
    replayer = RouteReplayer(checkpointed)
    loss = forward_loss(checkpointed, replayer, 0, "qwen3_moe")
    live = -next_token_logprobs(checkpointed, MICRO_BATCHES[1]).mean()
    assert largest_difference(gradients(checkpointed, live), expected_live) <= 1e-6
    assert largest_difference(gradients(checkpointed, loss), expected) <= 1e-6


def test_live_rows_keep_the_choice_of_the_forward_pass():
    """Weights that change between forward and recomputation stand for kernels that are not deterministic."""
    model = model_for("qwen3_moe", checkpointing=True)
    replayer = RouteReplayer(model)
    seen = []
    model.model.layers[1].mlp.experts.register_forward_pre_hook(lambda _, args: seen.append(args[1].clone()))
    loss = forward_loss(model, replayer, 0, "qwen3_moe", routes=None)
    with torch.no_grad():
        replayer.routers[0].module.weight.data.neg_()
    loss.backward()
    assert torch.equal(seen[0], seen[1])


def test_live_routes_are_recorded_once():
    model = model_for("qwen3_moe", checkpointing=True)
    with RouteReplayer(model).recording() as scope:
        loss = -next_token_logprobs(model, MICRO_BATCHES[0]).mean()
    recorded = scope.live_routes
    assert recorded.shape == (4, 2, 2)
    loss.backward()
    assert torch.equal(scope.live_routes, recorded)


@pytest.mark.parametrize("order", ["before", "after"])
def test_checkpointing_may_be_switched_on_before_or_after_the_replayer_is_made(order):
    plain = model_for("qwen3_moe", checkpointing=False)
    expected = both_in_flight(plain, RouteReplayer(plain), "qwen3_moe")
    model = model_for("qwen3_moe", checkpointing=order == "before")
    replayer = RouteReplayer(model)
    model.activation_checkpointing_enable({"use_reentrant": False})
    assert largest_difference(both_in_flight(model, replayer, "qwen3_moe"), expected) <= 1e-6


def test_another_context_fn_is_kept():
    entered = []

    @contextlib.contextmanager
    def context(name):
        entered.append(name)
        yield

    model = model_for("qwen3_moe", checkpointing=True, context_fn=lambda: (context("forward"), context("recompute")))
    plain = model_for("qwen3_moe", checkpointing=False)
    expected = both_in_flight(plain, RouteReplayer(plain), "qwen3_moe")
    assert largest_difference(both_in_flight(model, RouteReplayer(model), "qwen3_moe"), expected) <= 1e-6
    # Three layers, two micro-batches.
    assert sorted(entered) == ["forward"] * 6 + ["recompute"] * 6


def test_reentrant_checkpointing_is_refused():
    model = make_model().train()
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match=r"Call activation_checkpointing_enable\(\{'use_reentrant': False\}\)\."):
        forward_loss(model, RouteReplayer(model), 0, "qwen3_moe")


class Checkpointed(nn.Module):
    """A layer that some other library checkpoints."""

    def __init__(self, layer, function):
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, hidden, **kwargs):
        return self.function(functools.partial(self.layer, **kwargs), hidden)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_that_loses_the_routes_is_an_error(reentrant):
    model = make_model().train()
    replayer = RouteReplayer(model)
    model.model.layers[1] = Checkpointed(model.model.layers[1], functools.partial(checkpoint, use_reentrant=reentrant))
    if reentrant:
        model.enable_input_require_grads()
    loss = forward_loss(model, replayer, 0, "qwen3_moe")
    with pytest.raises(RuntimeError, match="recomputed in a backward pass without the routes of its forward pass"):
        loss.backward()


def test_checkpointing_of_ones_own_with_our_context():
    plain, model = make_model().train(), make_model().train()
    replayer = RouteReplayer(model)
    function = functools.partial(checkpoint, use_reentrant=False, context_fn=CarryRoutes())
    model.model.layers[1] = Checkpointed(model.model.layers[1], function)
    expected = both_in_flight(plain, RouteReplayer(plain), "qwen3_moe")
    found = {name.replace(".layer.", "."): grad for name, grad in both_in_flight(model, replayer, "qwen3_moe").items()}
    assert largest_difference(found, expected) <= 1e-6
