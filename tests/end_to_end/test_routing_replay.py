"""Routing replay through the real engine and learner: what R3 removes, and what each pass replays (MATH 6)."""

import dataclasses

import numpy as np
import pytest
import torch

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.driver.calls import on_learners
from tests.end_to_end.conftest import Loop, config_for


def update(group, batch):
    metrics = on_learners(group, lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0))
    return metrics[0]


@pytest.fixture(scope="module")
def bfloat16_batches(actors_for, learner_pool, peaked_models):
    """Batches by model, sampled by a bfloat16 engine, routes recorded."""
    batches = {}

    def get(model):
        if model not in batches:
            config = config_for(peaked_models[model], lr=0.0)
            loop = Loop(actors_for(model, "bfloat16"), learner_pool(config), config)
            try:
                batches[model] = RolloutBatch.concatenate([loop.sample(first) for first in range(0, 32, 4)])
            finally:
                loop.close()
        return batches[model]

    return get


@pytest.fixture
def bfloat16_batch(bfloat16_batches):
    """That of the random model with peaked routers."""
    return bfloat16_batches("untied")


@pytest.fixture
def metrics_with(learner_pool, peaked_models, bfloat16_batch):
    """A function that updates float32 learners (learning rate 0) on the batch with the given options."""

    def get(batch=bfloat16_batch, model="untied", **options):
        return update(learner_pool(config_for(peaked_models[model], lr=0.0, **options)), batch)

    return get


def test_r3_removes_the_routing_part_of_the_mismatch(metrics_with):
    """k3 and the largest difference are each at least 5 times smaller; more than 0.5 % of routes differ."""
    without, with_r3 = metrics_with(), metrics_with(router_replay="r3")
    assert without["route_mismatch"] > 0.005
    assert with_r3["replayed_fraction"] == 1.0 and without["replayed_fraction"] == 0.0
    assert without["mismatch_kl"] > 5 * with_r3["mismatch_kl"]
    assert without["train_rollout_logprob_abs_diff_max"] > 5 * with_r3["train_rollout_logprob_abs_diff_max"]
    layers = [without[f"route_mismatch_layer_{layer}"] for layer in range(2)]
    assert np.mean(layers) == pytest.approx(without["route_mismatch"], rel=1e-6)


def test_on_the_trained_bundled_model_r3_lowers_the_mismatch_too(metrics_with, bfloat16_batches):
    """k3 at least 2 times smaller: 32 small experts, none of which stands in for another."""
    batch = bfloat16_batches("bundled")
    without, with_r3 = (metrics_with(batch, model="bundled", router_replay=replay) for replay in ("none", "r3"))
    assert without["route_mismatch"] > 0.005
    assert without["mismatch_kl"] > 2 * with_r3["mismatch_kl"], (without, with_r3)


@pytest.mark.parametrize("num_learners, zero_stage", [(2, 1), (2, 2), (2, 3)])
def test_ranks_and_stages_replay_the_same(metrics_with, num_learners, zero_stage):
    single = metrics_with(router_replay="r3")
    several = metrics_with(router_replay="r3", num_learners=num_learners, zero_stage=zero_stage)
    for name in ("mismatch_kl", "route_mismatch", "grad_norm", "loss"):
        assert several[name] == pytest.approx(single[name], rel=1e-4, abs=1e-9), name


def test_float32_on_both_sides_has_no_route_mismatch_and_replay_changes_nothing(loop_for):
    metrics = loop_for("untied", router_replay="r3").iterate()
    assert metrics["route_mismatch"] == 0.0 and metrics["replayed_fraction"] == 1.0
    assert metrics["train_rollout_logprob_abs_diff"] < 1e-6
    assert loop_for("untied").iterate()["loss"] == pytest.approx(metrics["loss"], abs=1e-7)


def shifted(batch, **kinds):
    """The batch with its routes put where they don't belong."""
    routes = batch.routes.copy()
    lengths = batch.prompt_lengths + batch.response_lengths - 1
    if "position" in kinds:
        routes = np.roll(routes, 1, axis=0)
    if "layer" in kinds:
        routes = routes[:, ::-1].copy()
    if "samples" in kinds:
        same = [i for i in range(1, batch.num_samples) if lengths[i] == lengths[i - 1]]
        ends = np.cumsum(lengths)
        for i in same:
            first, second = slice(ends[i - 1] - lengths[i - 1], ends[i - 1]), slice(ends[i] - lengths[i], ends[i])
            routes[first], routes[second] = routes[second].copy(), routes[first].copy()
        assert same
    return dataclasses.replace(batch, routes=routes)


@pytest.mark.parametrize("fault", ["position", "layer", "samples"])
def test_misplaced_routes_are_seen(metrics_with, bfloat16_batch, fault):
    right = metrics_with(router_replay="r3")
    wrong = metrics_with(shifted(bfloat16_batch, **{fault: True}), router_replay="r3")
    assert wrong["train_rollout_logprob_abs_diff"] > 5 * right["train_rollout_logprob_abs_diff"]
    assert wrong["route_mismatch"] > 5 * right["route_mismatch"]


def test_r2_replays_the_trainers_own_routes_over_several_steps(
    metrics_with, bfloat16_batch, learner_pool, peaked_models
):
    """The old-policy pass always takes place, measures the sampler's routes, and its own are replayed afterwards."""
    r2 = metrics_with(router_replay="r2")
    without = metrics_with()
    assert r2["route_mismatch"] == pytest.approx(without["route_mismatch"], rel=1e-6)
    assert r2["mismatch_kl"] == pytest.approx(without["mismatch_kl"], rel=1e-4)
    assert r2["loss"] == pytest.approx(without["loss"], abs=1e-6)
    # With real steps the policy moves, and its live routes with it; R2 keeps them and R3's are others.
    losses = {}
    for replay in ("none", "r2", "r3"):
        config = config_for(peaked_models["untied"], lr=1e-2, num_learners=2, router_replay=replay, num_epochs=3)
        losses[replay] = update(learner_pool(config), bfloat16_batch)["loss"]
    assert len(set(losses.values())) == 3, losses


def test_r2_records_what_the_old_policy_chose(learner_pool, peaked_models, bfloat16_batch):
    def routes_of(learner):
        return [learner.old_policy_of(bfloat16_batch)[1].routes for _ in range(2)]

    config = config_for(peaked_models["untied"], lr=0.0, router_replay="r2", num_learners=2)
    results = on_learners(learner_pool(config), routes_of)
    first, again = results[0]
    assert np.array_equal(first, again) and np.array_equal(first, results[1][0])
    assert first.dtype == np.uint8
    # The trainer's own, so mostly the sampler's too, but not all.
    same = (np.sort(first, -1) == np.sort(bfloat16_batch.routes, -1)).all(-1).mean()
    assert 0.9 < same < 1.0


def test_routes_that_are_missing_or_of_another_model_are_an_error(learner_pool, peaked_models, bfloat16_batch):
    config = config_for(peaked_models["untied"], lr=0.0, router_replay="r3")

    def attempt(batch):
        def call(learner):
            try:
                learner.update_from_rollouts(batch, env_steps_sampled=0)
            except ValueError as error:
                return str(error)
            return "no error"

        return on_learners(learner_pool(config), call)[0]

    assert "the batch has no routes" in attempt(dataclasses.replace(bfloat16_batch, routes=None))
    one_layer = dataclasses.replace(bfloat16_batch, routes=bfloat16_batch.routes[:, :1].copy())
    assert "routes have 1 layers and 2 experts" in attempt(one_layer)
    twice = bfloat16_batch.routes.copy()
    twice[4, 1] = 3
    assert "has no valid route at position" in attempt(dataclasses.replace(bfloat16_batch, routes=twice))


def test_gradients_reach_router_and_experts_through_replayed_routes(learner_pool, peaked_models, bfloat16_batch):
    config = config_for(peaked_models["untied"], lr=0.0, router_replay="r3")
    group = learner_pool(config)
    update(group, bfloat16_batch)
    gradient = on_learners(group, lambda learner: learner.gradients)[0][0]
    for part in ("mlp.gate.weight", "experts.gate_up_proj", "experts.down_proj"):
        found = [g for name, g in gradient.items() if name.endswith(part)]
        assert len(found) == 2 and all(float(torch.as_tensor(g).abs().max()) > 0 for g in found), part


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_activation_checkpointing_recomputes_with_the_same_routes(
    learner_pool, peaked_models, bfloat16_batch, zero_stage
):
    gradients = []
    for checkpointing in (False, True):
        config = config_for(peaked_models["untied"], lr=0.0, router_replay="r3", zero_stage=zero_stage)
        group = learner_pool(config.language_model(gradient_checkpointing=checkpointing))
        update(group, bfloat16_batch)
        gradients.append(on_learners(group, lambda learner: learner.gradients)[0][0])
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-6), name
