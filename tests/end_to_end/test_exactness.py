"""Trainer and sampler agree to float error after every weight update (tied and untied heads, experts, temperatures)."""

import numpy as np
import pytest

from rlhf_algos.driver.calls import on_env_runners, on_learners
from rlhf_algos.driver.crew import Weights, load

UPDATES = 10


@pytest.mark.parametrize("model", ["tied", "untied"])
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@pytest.mark.parametrize("num_learners", [1, 2])
def test_float32_agrees_after_every_update(loop_for, model, zero_stage, num_learners):
    loop = loop_for(model, zero_stage=zero_stage, num_learners=num_learners)
    history = [loop.iterate() for _ in range(UPDATES + 1)]
    differences = [metrics["train_rollout_logprob_abs_diff"] for metrics in history]
    assert max(differences) < 1e-6, differences
    # The updates are real: without a sync the last difference would be of this size.
    assert all(metrics["grad_norm"] > 1e-3 for metrics in history)


def test_shared_expert_model_agrees(loop_for):
    loop = loop_for("shared-expert", zero_stage=2)
    differences = [loop.iterate()["train_rollout_logprob_abs_diff"] for _ in range(3)]
    assert max(differences) < 1e-6, differences


def test_bfloat16_sampler_is_seen(loop_for):
    metrics = loop_for("untied", "bfloat16").iterate()
    assert metrics["train_rollout_logprob_abs_diff"] > 1e-4
    assert metrics["mismatch_kl"] > 0


@pytest.mark.parametrize("temperature, top_p, top_k", [(0.5, 1.0, 0), (1.7, 0.8, 0), (1.0, 1.0, 5)])
def test_temperature_and_truncation_agree(loop_for, temperature, top_p, top_k):
    metrics = loop_for("untied", lr=0.0, temperature=temperature, top_p=top_p, top_k=top_k).iterate()
    assert metrics["train_rollout_logprob_abs_diff"] < 2e-6
    assert metrics["entropy"] > 0.01


def swap_experts(tensors):
    first, second = (f"model.layers.0.mlp.experts.{i}.down_proj.weight" for i in (1, 2))
    tensors[first], tensors[second] = tensors[second], tensors[first]


def skip_expert(tensors):
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]


def rename_tensor(tensors):
    tensors["model.layers.0.mlp.experts.0.gatee_proj.weight"] = tensors.pop(
        "model.layers.0.mlp.experts.0.gate_proj.weight"
    )


def republish(loop, damage):
    """Publishes the current weights once more, after `damage` has changed the tensors' mapping."""
    version = loop.version = loop.version + 1
    channel = loop.channel

    def send(learner):
        tensors = dict(learner.checkpoint_tensors())
        damage(tensors)
        channel.send(tensors, version)

    on_learners(loop.learners, send)
    load(loop.actors, Weights(channel, version))


def test_wrong_tensors_are_noticed(loop_for):
    """Two swapped experts break the agreement; a missing or renamed tensor is an error that names it."""
    loop = loop_for("untied")
    assert loop.iterate()["train_rollout_logprob_abs_diff"] < 1e-6
    republish(loop, swap_experts)
    assert loop.iterate()["train_rollout_logprob_abs_diff"] > 1e-3
    with pytest.raises(ValueError, match=r"missing: model\.layers\.1\.mlp\.experts\.3\.up_proj\.weight"):
        republish(loop, skip_expert)
    with pytest.raises(ValueError, match=r"unexpected: .*gatee_proj\.weight \(renamed from .*gate_proj"):
        republish(loop, rename_tensor)
    republish(loop, lambda tensors: None)
    assert loop.iterate()["train_rollout_logprob_abs_diff"] < 1e-6


@pytest.mark.parametrize(
    "model, name, row",
    [("untied", "model.layers.0.mlp.experts.2.down_proj.weight", 0), ("tied", "model.embed_tokens.weight", 53)],
)
def test_one_changed_row_changes_the_sampler(loop_for, model, name, row):
    """Adding 1 to a row of one expert, or to one embedding row of a tied model, is seen by the sampler."""
    loop = loop_for(model, lr=0.0)
    before = logprobs_of_fixed_groups(loop)

    def damage(tensors):
        tensors[name] = tensors[name].clone()
        tensors[name][row] += 1.0

    republish(loop, damage)
    assert not np.array_equal(before, logprobs_of_fixed_groups(loop))


def logprobs_of_fixed_groups(loop):
    results = on_env_runners(
        loop.actors,
        lambda runner, version: runner.sample_groups([0, 1], weight_version=version)[0].rollout_logprobs,
        kwargs_by_actor={actor: {"version": loop.version} for actor in loop.actors.healthy_env_runner_ids()},
    )
    return next(iter(results.values()))
