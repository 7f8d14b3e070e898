"""The gradient of one step equals a plain reference's, however the batch is packed and split."""

import dataclasses
import re

import numpy as np
import pytest
import ray
import torch
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rlhf_algos.driver.calls import on_learners
from rlhf_algos.envs import make_prompt_env
from rlhf_algos.learner.token_loss import TokenLoss
from tests.learner.conftest import make_batch, make_config
from tests.learner.reference import largest_relative_error, reference_loss_and_gradient

UNEQUAL = [30, 1, 7, 0, 12, 3, 25, 2]  # the fourth response is empty, the sixth is fully masked


def step(group, batch):
    metrics = on_learners(group, lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0))
    gradients = on_learners(group, lambda learner: learner.gradients)
    return metrics, gradients


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@pytest.mark.parametrize("token_budget", [20, 10_000])
def test_two_ranks_with_packing_equal_the_reference(learners, peaked_models, zero_stage, token_budget):
    batch = make_batch(UNEQUAL, masked=[5])
    group = learners(num_learners=2, zero_stage=zero_stage, token_budget=token_budget)
    metrics, gradients = step(group, batch)
    loss, expected = reference_loss_and_gradient(peaked_models["untied"], batch)
    assert metrics[0] == metrics[1]
    assert metrics[0]["loss"] == pytest.approx(loss, abs=1e-6)
    for found in gradients:
        assert largest_relative_error(found[0], expected) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {"loss_reduction": "seq-mean-token-mean"},
        {"loss_reduction": "seq-mean-token-sum"},
        {"loss_reduction": "seq-mean-token-sum-norm", "loss_fixed_length": 32},
        {"entropy_coefficient": 0.1},
    ],
)
def test_reductions_and_entropy_equal_the_reference(learners, peaked_models, options):
    batch = make_batch(UNEQUAL, masked=[5])
    _, gradients = step(learners(token_budget=25, **options), batch)
    reference = {
        "reduction": options.get("loss_reduction", "token-mean"),
        "fixed_length": options.get("loss_fixed_length"),
        "entropy_coefficient": options.get("entropy_coefficient", 0.0),
    }
    _, expected = reference_loss_and_gradient(peaked_models["untied"], batch, **reference)
    assert largest_relative_error(gradients[0][0], expected) < 1e-5


def test_tied_embeddings_equal_the_reference(learners, peaked_models):
    batch = make_batch(UNEQUAL, masked=[5])
    _, gradients = step(learners("tied", num_learners=2, zero_stage=3), batch)
    _, expected = reference_loss_and_gradient(peaked_models["tied"], batch)
    assert largest_relative_error(gradients[0][0], expected) < 1e-5


def test_fewer_micro_batches_than_ranks(learners, peaked_models):
    """One trained sample for two ranks; the other rank's dummy keeps step and changes nothing."""
    batch = make_batch([9, 4], masked=[1])
    group = learners(num_learners=2, zero_stage=3)
    metrics, gradients = step(group, batch)
    loss, expected = reference_loss_and_gradient(peaked_models["untied"], batch)
    assert metrics[0]["loss"] == pytest.approx(loss, abs=1e-6)
    assert largest_relative_error(gradients[0][0], expected) < 1e-5


class Broken(TokenLoss):
    """Raises."""

    def __call__(self, tokens):
        raise ValueError("rank 1 broke")


@dataclasses.dataclass(frozen=True)
class TimesInfinity(TokenLoss):
    """A finite loss times what overflows."""

    loss: TokenLoss

    def __call__(self, tokens):
        values, metrics = self.loss(tokens)
        return values * 1e38 * 1e38, metrics


def test_a_failing_rank_stops_all(ray_session, peaked_models):
    """The driver gets the failing rank's own error within 60 s, although the other waits for it."""
    batch = make_batch([9, 4, 6, 8])
    # Processes of its own: they can't be used after the error.
    config = make_config(peaked_models["untied"], num_learners=2, zero_stage=2)
    env = make_prompt_env("rlhf_algos/Addition-v0")
    spaces = {"default_policy": (env.observation_space, env.action_space)}
    group = config.build_learner_group(rl_module_spec=config.get_multi_rl_module_spec(spaces=spaces))

    def fail_on_rank_1(learner):
        if learner.rank == 1:
            learner.settings = dataclasses.replace(learner.settings, token_loss=Broken())
        return learner.update_from_rollouts(batch, env_steps_sampled=0)

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises((ValueError, ray.exceptions.RayTaskError), match="rank 1 broke"):
            pool.submit(on_learners, group, fail_on_rank_1).result(timeout=60)


def test_everything_masked_changes_nothing(learners):
    """Loss 0, finite metrics, the same weights."""
    batch = make_batch([3, 0, 5], masked=[0, 1, 2])
    group = learners()
    before = on_learners(group, lambda learner: {n: t.clone() for n, t in learner.named_weights()})[0]
    metrics, gradients = step(group, batch)
    after = on_learners(group, lambda learner: {n: t.clone() for n, t in learner.named_weights()})[0]
    assert metrics[0]["loss"] == 0.0
    assert metrics[0]["num_optimizer_steps"] == 0
    assert metrics[0]["steps_without_trained_token"] == 1
    assert all(np.isfinite(value) for value in metrics[0].values())
    assert "entropy" not in metrics[0]
    assert gradients[0] == []
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("minibatch_size, num_epochs, steps", [(4, 1, 2), (None, 3, 3)])
def test_old_policy_pass_gives_one_p0_for_all_steps(learners, peaked_models, minibatch_size, num_epochs, steps):
    """With several steps the ratio is against the policy before the first: the first step equals the reference."""
    batch = make_batch(UNEQUAL)
    group = learners(num_learners=2, minibatch_size=minibatch_size, num_epochs=num_epochs, lr=1e-2)
    metrics, gradients = step(group, batch)
    assert metrics[0]["num_optimizer_steps"] == steps
    assert metrics[0]["train_rollout_logprob_abs_diff"] == pytest.approx(expected_abs_diff(batch, peaked_models), 1e-5)
    if minibatch_size is None:
        _, expected = reference_loss_and_gradient(peaked_models["untied"], batch)
        assert largest_relative_error(gradients[0][0], expected) < 1e-5
        # From the second step on, the policy has moved and the clip bites.
        assert metrics[0]["pg_clipfrac"] > 0.0


def expected_abs_diff(batch, peaked_models):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(peaked_models["untied"], dtype=torch.float32)
    differences, p, t = [], 0, 0
    for n, m in zip(batch.prompt_lengths, batch.response_lengths, strict=True):
        ids = np.concatenate([batch.prompt_ids[p : p + n], batch.response_ids[t : t + m]])
        with torch.no_grad():
            everything = model(torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
        logprobs = everything[n - 1 : -1].gather(1, torch.from_numpy(ids[n:])[:, None])[:, 0]
        differences += (logprobs.numpy() - batch.rollout_logprobs[t : t + m]).__abs__().tolist()
        p, t = p + n, t + m
    return float(np.mean(differences))


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("rollout_logprobs", np.nan, r"rollout log-probability of token 1 of sample 100 is nan"),
        ("rewards", np.inf, r"reward of sample 100 is inf"),
        ("advantages", np.nan, r"advantage of sample 100 is nan"),
    ],
)
def test_garbage_at_a_trained_place_stops_by_name(learners, field, value, message):
    batch = make_batch([4, 3], masked=[1])
    array = getattr(batch, field).copy()
    array[1 if field == "rollout_logprobs" else 0] = value
    damaged = dataclasses.replace(batch, **{field: array})

    def attempt(learner):
        try:
            learner.update_from_rollouts(damaged, env_steps_sampled=0)
        except ValueError as error:
            return str(error), len(learner.gradients)
        return "no error", len(learner.gradients)

    ((text, steps),) = on_learners(learners(), attempt)
    assert re.search(message, text), text
    assert steps == 0


def test_garbage_at_an_untrained_place_changes_nothing(learners):
    batch = make_batch([4, 3], masked=[1])
    rollout_logprobs = batch.rollout_logprobs.copy()
    rollout_logprobs[4:] = [np.nan, np.inf, 1e30]  # the masked response's
    clean, clean_gradients = step(learners(), batch)
    dirty, dirty_gradients = step(learners(), dataclasses.replace(batch, rollout_logprobs=rollout_logprobs))
    assert clean == dirty
    for name, gradient in clean_gradients[0][0].items():
        assert torch.equal(gradient, dirty_gradients[0][0][name])


def test_kl_penalty_pulls_back_and_needs_a_reference_only_if_on(learners):
    batch = make_batch([6, 5, 7, 4])
    plain = learners()
    assert on_learners(plain, lambda learner: learner.reference is None) == [True]
    penalized = learners(kl_coefficient=0.5, kl_kind="k3", lr=1e-2)
    first, _ = step(penalized, batch)
    second, _ = step(penalized, batch)
    assert first[0]["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert second[0]["reference_kl"] > 1e-4


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_a_gradient_that_is_not_finite_is_not_stepped_with(learners, zero_stage):
    """The step is refused with an error, the weights stay bit-equal, and so nothing broken can be published."""
    batch = make_batch([6, 5, 7, 4])
    group = learners(num_learners=2, zero_stage=zero_stage, lr=1e-2)

    def attempt(learner):
        before = {name: tensor.clone() for name, tensor in learner.named_weights()}
        learner.settings = dataclasses.replace(learner.settings, token_loss=TimesInfinity(learner.settings.token_loss))
        try:
            learner.update_from_rollouts(batch, env_steps_sampled=0)
            text = "no error"
        except ValueError as error:
            text = str(error)
        after = {name: tensor.clone() for name, tensor in learner.named_weights()}
        version = learner.get_state(inference_only=True)[WEIGHTS_SEQ_NO]
        return text, all(torch.equal(before[name], after[name]) for name in before), version

    for text, unchanged, steps in on_learners(group, attempt):
        assert "gradient norm is" in text
        assert unchanged
        assert steps == 0
