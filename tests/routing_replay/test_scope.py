"""Replay begins and ends with its scope, and stays on its model."""

import copy
import threading

import pytest
import torch

from rlhf_algos.routing_replay import RouteReplayer
from tests.routing_replay.models import (
    ARCHITECTURES,
    TOKENS,
    make_model,
    next_token_logprobs,
    replayed_logprobs,
    routes_for,
)

NUM_TOKENS = TOKENS.numel()
ROUTES = routes_for("qwen3_moe", NUM_TOKENS)


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def replayer(model):
    return RouteReplayer(model)


def replayed_by_a_new_model():
    model = make_model()
    return replayed_logprobs(model, RouteReplayer(model), TOKENS, ROUTES)


def difference(first, second):
    return float((first - second).detach().abs().max())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_plain_forward_after_a_replayed_one_is_the_plain_forward(architecture):
    model = make_model(architecture)
    never_replayed = next_token_logprobs(model, TOKENS)
    replayer = RouteReplayer(model)
    assert difference(next_token_logprobs(model, TOKENS), never_replayed) == 0.0
    replayed = replayed_logprobs(model, replayer, TOKENS, routes_for(architecture, NUM_TOKENS))
    assert difference(next_token_logprobs(model, TOKENS), never_replayed) == 0.0
    assert difference(replayed, never_replayed) > 0.05


def test_two_models_in_one_process():
    policy, reference = make_model(), make_model()
    policy_replayer, reference_replayer = RouteReplayer(policy), RouteReplayer(reference)
    plain = next_token_logprobs(policy, TOKENS)
    with reference_replayer.replaying(ROUTES):
        replayed = next_token_logprobs(reference, TOKENS)
        assert difference(next_token_logprobs(policy, TOKENS), plain) == 0.0
    assert difference(replayed, plain) > 0.05

    others = routes_for("qwen3_moe", NUM_TOKENS, seed=1)
    with policy_replayer.replaying(others), reference_replayer.replaying(ROUTES):
        both = next_token_logprobs(policy, TOKENS), next_token_logprobs(reference, TOKENS)
    assert difference(both[0], replayed_logprobs(policy, policy_replayer, TOKENS, others)) == 0.0
    assert difference(both[1], replayed) == 0.0


def test_a_deep_copy_is_another_model(model, replayer):
    """A frozen reference policy is often made this way: it must run on its own weights, with its own routes."""
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for router in replayer.routers:
            router.module.weight.neg_()
    plain = next_token_logprobs(make_model(), TOKENS)
    with replayer.replaying(ROUTES):
        assert difference(next_token_logprobs(reference, TOKENS), plain) == 0.0
        next_token_logprobs(model, TOKENS)
    replayed = replayed_logprobs(reference, RouteReplayer(reference), TOKENS, ROUTES)
    assert difference(replayed, replayed_by_a_new_model()) == 0.0


def test_evaluation_between_setup_and_policy_forward_does_not_consume_routes(model, replayer):
    plain = next_token_logprobs(model, TOKENS)
    expected = replayed_logprobs(model, replayer, TOKENS, ROUTES)
    scope = replayer.replaying(ROUTES)
    with torch.no_grad():
        assert difference(next_token_logprobs(model, TOKENS), plain) == 0.0
        next_token_logprobs(model, TOKENS[:1, :3])
    with scope:
        assert difference(next_token_logprobs(model, TOKENS), expected) == 0.0


def test_the_same_routes_in_the_old_policy_pass_and_in_the_update(model, replayer):
    with torch.no_grad():
        old = replayed_logprobs(model, replayer, TOKENS, ROUTES)
    assert difference(old, replayed_logprobs(model, replayer, TOKENS, ROUTES)) == 0.0


def test_an_exception_within_the_forward_clears_the_state(model, replayer):
    plain = next_token_logprobs(model, TOKENS)

    def fail(*_):
        raise KeyboardInterrupt

    hook = replayer.routers[-1].module.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        replayed_logprobs(model, replayer, TOKENS, ROUTES)
    hook.remove()
    assert difference(next_token_logprobs(model, TOKENS), plain) == 0.0
    assert difference(replayed_logprobs(model, replayer, TOKENS, ROUTES), replayed_by_a_new_model()) == 0.0


def test_a_failed_entry_leaves_no_scope_behind(model, replayer):
    plain = next_token_logprobs(model, TOKENS)
    model.train()
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant"):
        replayed_logprobs(model, replayer, TOKENS, ROUTES)
    model.eval()
    assert difference(next_token_logprobs(model, TOKENS), plain) == 0.0


def test_other_threads_are_not_in_the_scope(model, replayer):
    plain = next_token_logprobs(model, TOKENS)
    found = []
    with replayer.replaying(ROUTES):
        next_token_logprobs(model, TOKENS)
        thread = threading.Thread(target=lambda: found.append(next_token_logprobs(model, TOKENS)))
        thread.start()
        thread.join()
    assert difference(found[0], plain) == 0.0


def test_a_replayer_made_twice_replays_once(model):
    first, second = RouteReplayer(model), RouteReplayer(model)
    expected = replayed_logprobs(model, first, TOKENS, ROUTES)
    assert difference(replayed_logprobs(model, second, TOKENS, ROUTES), expected) == 0.0
    names = {type(router.module).__name__ for router in second.routers}
    assert names == {"Qwen3MoeTopKRouter"}
    assert len(type(second.routers[0].module).__mro__) == len(type(first.routers[0].module).__mro__)


def test_state_dicts_and_parameter_names_are_untouched():
    model = make_model()
    expected = list(model.state_dict()), [name for name, _ in model.named_modules()]
    replayed_logprobs(model, RouteReplayer(model), TOKENS, ROUTES)
    assert (list(model.state_dict()), [name for name, _ in model.named_modules()]) == expected


# ---- what would have been replayed in silence, or not at all ------------------------------------------------------


def test_a_scope_without_a_forward(model, replayer):
    with pytest.raises(RuntimeError, match=r"2 of 2 routers did not run within the replayed forward pass, model\."):
        with replayer.replaying(ROUTES):
            next_token_logprobs(make_model(), TOKENS)


def test_a_rebuilt_layer_is_noticed(model, replayer):
    model.model.layers[2] = make_model().model.layers[2]
    with pytest.raises(RuntimeError, match=r"1 of 2 routers did not run .*, model\.layers\.2\.mlp\.gate first"):
        replayed_logprobs(model, replayer, TOKENS, ROUTES)


def test_a_second_forward_in_one_scope(model, replayer):
    with pytest.raises(RuntimeError, match=r"model\.layers\.1\.mlp\.gate ran twice within one replay scope"):
        with replayer.replaying(ROUTES):
            next_token_logprobs(model, TOKENS)
            next_token_logprobs(model, TOKENS)


def test_a_scope_is_entered_once(model, replayer):
    scope = replayer.replaying(ROUTES)
    with scope:
        next_token_logprobs(model, TOKENS)
    with pytest.raises(RuntimeError, match="A ReplayScope is for one forward pass"):
        with scope:
            pass


def test_live_routes_before_the_forward(replayer):
    with pytest.raises(RuntimeError, match=r"No live routes yet: model\.layers\.1\.mlp\.gate has not run"):
        replayer.recording().live_routes  # noqa: B018


def test_routes_of_another_number_of_tokens(model, replayer):
    with pytest.raises(
        ValueError, match=r"The routes are of 13 tokens, but model\.layers\.1\.mlp\.gate routes 14 token"
    ):
        replayed_logprobs(model, replayer, TOKENS, ROUTES[1:])


def changed(index, value):
    routes = ROUTES.clone()
    routes[index] = torch.tensor(value)
    return routes


@pytest.mark.parametrize(
    ("routes", "error", "message"),
    [
        (ROUTES.float(), TypeError, "routes must be an integer tensor, got torch.float32."),
        (ROUTES > 1, TypeError, "routes must be an integer tensor, got torch.bool."),
        (ROUTES.numpy(), TypeError, "routes must be an integer tensor, got ndarray."),
        (ROUTES[:, :1], ValueError, r"\[tokens, 2 mixture-of-experts layers, 2 experts\], got \(14, 1, 2\)"),
        (ROUTES[..., :1], ValueError, r"2 experts\], got \(14, 2, 1\)"),
        (ROUTES[:, 0], ValueError, r"got \(14, 2\)"),
        (
            changed((3, 1), [0, 4]),
            ValueError,
            r"token 3 in layer 1 \(model\.layers\.2\.mlp\.gate\) are \[0, 4\]: experts",
        ),
        (changed((3, 1), [-1, 2]), ValueError, r"\[-1, 2\]: experts must lie in \[0, 4\), or all be -1"),
        (changed((3, 1), [-2, -2]), ValueError, r"must lie in \[0, 4\)"),
        (changed((3, 0), [2, 2]), ValueError, r"are \[2, 2\]: the experts of a token must differ"),
        (changed(3, [0, 0]), ValueError, r"token 3 in layer 0 .* never recorded. 2 such rows in all\."),
    ],
)
def test_impossible_routes(replayer, routes, error, message):
    with pytest.raises(error, match=message):
        replayer.replaying(routes)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_any_integer_dtype(model, replayer, dtype):
    expected = replayed_logprobs(model, replayer, TOKENS, ROUTES)
    with replayer.replaying(ROUTES.to(dtype)) as scope:
        assert difference(next_token_logprobs(model, TOKENS), expected) == 0.0
    assert scope.replayed.all()
