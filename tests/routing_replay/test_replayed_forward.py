"""What a replayed forward computes: nothing new for the model's own routes, a hand-written mixture for others."""

import pytest
import torch
from torch import nn
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter

from rlhf_algos.routing_replay import RouteReplayer
from tests.routing_replay.models import (
    ARCHITECTURES,
    SIZES,
    TOKENS,
    gradients,
    largest_difference,
    make_model,
    next_token_logprobs,
    replayed_logprobs,
    routes_for,
)
from tests.routing_replay.reference import with_reference_mixture

NUM_TOKENS = TOKENS.numel()


def loss_and_gradients(model, logprobs):
    return logprobs.detach(), gradients(model, -logprobs.mean())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_found_in_the_model(architecture):
    replayer = RouteReplayer(make_model(architecture))
    found = (replayer.num_layers, replayer.num_experts, replayer.top_k, replayer.decoder_layers)
    assert found == SIZES[architecture]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_wrong_route_moves_logprobs_on_these_models(architecture):
    """The guard: on weights as they are initialized, broken replay would pass the tests below."""
    model = make_model(architecture)
    replayer = RouteReplayer(model)
    first, second = (
        replayed_logprobs(model, replayer, TOKENS, routes_for(architecture, NUM_TOKENS, seed=seed)).detach()
        for seed in (0, 1)
    )
    assert float((first - second).abs().max()) > 0.05


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recording_and_replaying_its_own_routes_changes_nothing(architecture):
    """Bit-equal, values and gradients."""
    untouched, model = make_model(architecture), make_model(architecture)
    expected, expected_gradients = loss_and_gradients(untouched, next_token_logprobs(untouched, TOKENS))
    replayer = RouteReplayer(model)

    with replayer.recording() as scope:
        recorded, recorded_gradients = loss_and_gradients(model, next_token_logprobs(model, TOKENS))
    own = scope.live_routes
    replayed, replayed_gradients = loss_and_gradients(model, replayed_logprobs(model, replayer, TOKENS, own))

    for values, found in ((recorded, recorded_gradients), (replayed, replayed_gradients)):
        assert torch.equal(values, expected)
        assert largest_difference(found, expected_gradients) == 0.0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_other_routes_equal_a_mixture_written_by_hand(architecture):
    """Also with rows of -1, and the live choices that are recorded on the way."""
    routes = routes_for(architecture, NUM_TOKENS)
    routes[[3, NUM_TOKENS - 1]] = -1
    routes[5, 1] = -1
    reference, live_choices = with_reference_mixture(architecture, make_model(architecture), routes)
    expected, expected_gradients = loss_and_gradients(reference, next_token_logprobs(reference, TOKENS))

    model = make_model(architecture)
    with RouteReplayer(model).replaying(routes) as scope:
        logprobs = next_token_logprobs(model, TOKENS)
    found, found_gradients = loss_and_gradients(model, logprobs)

    assert float((found - expected).abs().max()) < 1e-5
    assert largest_difference(found_gradients, expected_gradients) < 1e-5
    assert torch.equal(scope.live_routes.sort(-1).values, torch.stack(live_choices, 1).sort(-1).values)
    assert torch.equal(scope.replayed, routes[..., 0] >= 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_reach_the_router_and_only_the_replayed_experts(architecture):
    layers, experts, top_k, _ = SIZES[architecture]
    routes = torch.arange(top_k).expand(NUM_TOKENS, layers, top_k)
    model = make_model(architecture)
    replayer = RouteReplayer(model)
    found = gradients(model, -replayed_logprobs(model, replayer, TOKENS, routes).mean())
    for router in replayer.routers:
        block = router.name.rpartition(".")[0]
        assert float(found[f"{router.name}.weight"].abs().max()) > 1e-4
        by_expert = found[f"{block}.experts.down_proj"].abs().amax(dim=(1, 2))
        assert (by_expert > 0).tolist() == [expert < top_k for expert in range(experts)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_order_of_experts_within_a_row_means_nothing(architecture):
    model = make_model(architecture)
    replayer = RouteReplayer(model)
    routes = routes_for(architecture, NUM_TOKENS)
    with torch.no_grad():
        first = replayed_logprobs(model, replayer, TOKENS, routes)
        second = replayed_logprobs(model, replayer, TOKENS, routes.flip(-1).to(torch.uint8))
    assert float((first - second).abs().max()) < 1e-5


def by_position(routes):
    return routes.roll(1, dims=0)


def by_layer(routes):
    return routes.roll(1, dims=1)


def swapped_samples(routes):
    return routes.unflatten(0, (2, -1)).flip(0).flatten(0, 1)


def sequence_first(routes):
    return routes.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)


@pytest.mark.parametrize("mistake", [by_position, by_layer, swapped_samples, sequence_first])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_misplaced_routes_are_far_from_the_reference(architecture, mistake):
    """Were the code to misplace routes in this way, the comparison with the reference above would fail."""
    routes = routes_for(architecture, NUM_TOKENS)
    reference, _ = with_reference_mixture(architecture, make_model(architecture), routes)
    expected = next_token_logprobs(reference, TOKENS)
    model = make_model(architecture)
    replayer = RouteReplayer(model)

    with torch.no_grad():
        right = replayed_logprobs(model, replayer, TOKENS, routes) - expected
        wrong = replayed_logprobs(model, replayer, TOKENS, mistake(routes)) - expected

    assert float(right.abs().max()) < 1e-5
    assert float(wrong.abs().max()) > 0.05


def test_the_jacobian_of_a_softmax_over_the_chosen():
    """MATH 6.2: dg_i/du_j = g_i (1{i = j} - g_j) for chosen i, j, and 0 otherwise; worked out on three of five."""
    router = GptOssTopKRouter(GptOssConfig(hidden_size=5, num_local_experts=5, num_experts_per_tok=3))
    with torch.no_grad():
        router.weight.copy_(torch.eye(5))
        router.bias.zero_()
    replayer = RouteReplayer(nn.ModuleList([router]))
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])  # live choice: 4, 3, 2
    chosen = torch.tensor([[[2, 0, 1]]])

    def gates(u):
        with replayer.replaying(chosen):
            return router(u)[1][0]

    e = torch.exp(torch.tensor([2.0, 0.0, 1.0]))
    g = e / e.sum()
    expected = torch.zeros(3, 5)
    for row, i in enumerate([2, 0, 1]):
        for column, j in enumerate([2, 0, 1]):
            expected[row, j] = g[row] * (float(i == j) - g[column])

    torch.testing.assert_close(gates(logits), g)
    torch.testing.assert_close(torch.autograd.functional.jacobian(gates, logits)[:, 0], expected)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["glm4_moe", "deepseek_v3"])
def test_the_choice_bias_is_not_in_the_gates(architecture):
    """The bias decides the live choice only; under replay its value changes nothing."""
    model = make_model(architecture)
    replayer = RouteReplayer(model)
    routes = routes_for(architecture, NUM_TOKENS)
    before = replayed_logprobs(model, replayer, TOKENS, routes)
    plain_before = next_token_logprobs(model, TOKENS)
    for router in replayer.routers:
        router.module.e_score_correction_bias.copy_(torch.randn_like(router.module.e_score_correction_bias))
    assert torch.equal(replayed_logprobs(model, replayer, TOKENS, routes), before)
    assert float((next_token_logprobs(model, TOKENS) - plain_before).abs().max()) > 0.05


@torch.no_grad()
def test_experts_outside_of_the_live_groups_are_replayed():
    """DeepSeek-V3 chooses within 2 of 4 groups of 2; a recorded route may come from three."""
    model = make_model("deepseek_v3")
    routes = torch.tensor([1, 2, 5]).expand(NUM_TOKENS, 2, 3)
    reference, _ = with_reference_mixture("deepseek_v3", make_model("deepseek_v3"), routes)
    found = replayed_logprobs(model, RouteReplayer(model), TOKENS, routes)
    assert float((found - next_token_logprobs(reference, TOKENS)).abs().max()) < 1e-5
