"""Several training steps in one iteration: every number is the one that its name says, of all steps together."""

from functools import partial

import numpy as np
import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.driver.advantages import with_advantages
from rlhf_algos.driver.batch_metrics import (
    REDUCTIONS,
    IterationMetrics,
    lifetime_counts,
    reduction_of,
    rollout_metrics,
    staleness_metrics,
    step_counts,
)
from rlhf_algos.metrics import LEARNER, STALENESS
from rlhf_algos.objectives import group_advantages
from rlhf_algos.rollout.assembly import ScoredResponse, assemble
from rlhf_algos.rollout.engine import Generation
from rlhf_algos.rollout.sampling import SamplingSettings


def batch_of(groups, *, tokens, version=0, finish="stop"):
    """One batch from groups of rewards; every response has `tokens` tokens."""
    rewards = [(group, reward) for group, rewards in enumerate(groups) for reward in rewards]
    responses = [
        ScoredResponse(
            sample, group, Generation([7], [5] * tokens, [-0.1] * tokens, finish_reason=finish), reward, version
        )
        for sample, (group, reward) in enumerate(rewards)
    ]
    undivided = partial(group_advantages, normalize_std=False)
    return with_advantages(assemble(responses, SamplingSettings(), router=None, settings=None), undivided)


# 8 responses of 2 tokens, one unscored; then 4 of 6 tokens, cut off, sampled two versions ago.
FIRST = batch_of([[1.0, 0.0, 1.0, None], [0.5, 0.5, 0.5, 0.5]], tokens=2, version=5)
SECOND = batch_of([[0.0, 0.0, -1.0, 0.0]], tokens=6, version=3, finish="length")
LEARNER_FIRST = {
    "loss": 1.0,
    "grad_norm": 3.0,
    "learning_rate": 1e-3,
    "num_optimizer_steps": 2.0,
    "steps_without_trained_token": 1.0,
    "kept_signal": 0.5,
    "train_rollout_logprob_abs_diff": 0.1,
    "train_rollout_logprob_abs_diff_max": 0.9,
    "tis": 1.2,
    "route_mismatch_layer_3": 0.5,
}
LEARNER_SECOND = {
    "loss": 2.0,
    "grad_norm": 6.0,
    "learning_rate": 5e-4,
    "num_optimizer_steps": 1.0,
    "steps_without_trained_token": 0.0,
    "kept_signal": 1.0,
    "train_rollout_logprob_abs_diff": 0.3,
    "train_rollout_logprob_abs_diff_max": 0.4,
    "tis": 1.0,
    "route_mismatch_layer_3": 0.0,
}
STEPS = [(FIRST, LEARNER_FIRST), (SECOND, LEARNER_SECOND)]


def iteration(logger, metrics, steps, number=0):
    """What RLlib makes the result of one iteration with these training steps."""
    for batch, learner in steps:
        metrics.start_step(number)
        counts = step_counts(batch, learner)
        metrics.log(logger, "env_runners", rollout_metrics(batch), counts)
        lifetime = lifetime_counts(batch, prompts_too_long=1, groups_sampled_again=2)
        metrics.log(logger, "env_runners", lifetime, counts)
        metrics.log(logger, STALENESS, staleness_metrics(batch, 5), counts)
        metrics.log(logger, LEARNER, learner, counts)
    return logger.reduce(compile=True)


def test_two_steps_of_one_iteration():
    result = iteration(MetricsLogger(root=True), IterationMetrics(), STEPS)
    assert result["env_runners"] == pytest.approx(
        {
            "episode_return_mean": (1 + 0 + 1 + 4 * 0.5 - 1) / 11,
            "episode_return_min": -1.0,
            "episode_return_max": 1.0,
            "response_length_mean": (8 * 2 + 4 * 6) / 12,
            "truncated_fraction": 4 / 12,
            # One of two groups that can be compared, then none of one.
            "zero_std_group_fraction": 1 / 3,
            "num_episodes": 12,
            "num_response_tokens": 40,
            "num_env_steps_sampled_lifetime": 12,
            "num_response_tokens_lifetime": 40,
            "unscorable_responses_lifetime": 1,
            "prompts_too_long_lifetime": 2,
            "groups_sampled_again_lifetime": 4,
        }
    )
    # Trained tokens: 7 x 2 and 4 x 6.
    assert result["staleness"] == pytest.approx({"mean": 24 * 2 / 38, "max": 2})
    signal = [2 * 4 / 3, 6 * 1.5]
    assert result["learners"]["default_policy"] == pytest.approx(
        {
            "loss": (3 * 1.0 + 1 * 2.0) / 4,
            "grad_norm": (2 * 3.0 + 1 * 6.0) / 3,
            "learning_rate": 5e-4,
            "num_optimizer_steps": 3,
            "steps_without_trained_token": 1,
            "kept_signal": (signal[0] * 0.5 + signal[1] * 1.0) / sum(signal),
            "train_rollout_logprob_abs_diff": (14 * 0.1 + 24 * 0.3) / 38,
            "train_rollout_logprob_abs_diff_max": 0.9,
            "tis": (14 * 1.2 + 24 * 1.0) / 38,
            "route_mismatch_layer_3": 14 * 0.5 / 38,
        }
    )


def test_an_iteration_of_one_step_is_that_step_and_the_next_starts_anew():
    logger, metrics = MetricsLogger(root=True), IterationMetrics()
    iteration(logger, metrics, STEPS)
    result = iteration(logger, metrics, STEPS[1:], number=1)
    runners = result["env_runners"]
    assert {name: runners[name] for name in rollout_metrics(SECOND)} == pytest.approx(rollout_metrics(SECOND))
    assert result["learners"]["default_policy"] == pytest.approx(LEARNER_SECOND)
    assert result["staleness"] == {"mean": 2.0, "max": 2.0}
    assert runners["num_env_steps_sampled_lifetime"] == 16


def test_a_metric_that_only_one_step_has_is_that_steps():
    logger, metrics = MetricsLogger(root=True), IterationMetrics()
    nothing = {"loss": 0.0, "num_optimizer_steps": 0.0, "steps_without_trained_token": 1.0}
    learner = iteration(logger, metrics, [(FIRST, nothing), (SECOND, LEARNER_SECOND)])["learners"]["default_policy"]
    assert learner["grad_norm"] == 6.0 and learner["tis"] == 1.0 and learner["loss"] == 1.0
    # No step of the next iteration has it: not a number, rather than the last iteration's.
    learner = iteration(logger, metrics, [(FIRST, nothing)], number=1)["learners"]["default_policy"]
    assert np.isnan(learner["grad_norm"]) and learner["loss"] == 0.0


def test_a_learners_own_metric_is_a_mean_over_trained_tokens_and_other_unknown_keys_are_refused():
    assert reduction_of(f"{LEARNER}/my_metric") == REDUCTIONS[f"{LEARNER}/entropy"]
    with pytest.raises(KeyError, match="env_runners/my_metric"):
        reduction_of("env_runners/my_metric")


def test_a_metric_of_responses_is_a_mean_over_the_trained_ones_of_all_steps():
    """7 of the first step, 4 of the second; their tokens are 14 and 24."""
    logger, metrics = MetricsLogger(root=True), IterationMetrics({"pg_clipfrac"})
    steps = [(FIRST, LEARNER_FIRST | {"pg_clipfrac": 1.0}), (SECOND, LEARNER_SECOND | {"pg_clipfrac": 0.0})]
    learner = iteration(logger, metrics, steps)["learners"]["default_policy"]
    assert learner["pg_clipfrac"] == pytest.approx(7 / 11) and learner["tis"] == pytest.approx((14 * 1.2 + 24) / 38)


def test_names_and_reductions_agree():
    for key, reduction in REDUCTIONS.items():
        for ending, expected in (("_max", "max"), ("_min", "min"), ("_lifetime", "lifetime_sum"), ("/max", "max")):
            assert not key.endswith(ending) or reduction == expected, key
        if key.rpartition("/")[2].startswith("num_"):
            assert reduction == ("lifetime_sum" if key.endswith("_lifetime") else "sum"), key
