"""Statistics of a sampled batch, and how those of several training steps become one number each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME, NUM_ENV_STEPS_TRAINED_LIFETIME
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.batch import FINISH_LENGTH, RolloutBatch
from rlhf_algos.driver.advantages import scored_with_others
from rlhf_algos.metrics import LAST, LEARNER, METRICS, TOKENS, TRAINED_RESPONSES, Mean, declared_name
from rlhf_algos.objectives import zero_std_group_fraction

#: What the training steps of one `train()` make of each key that a run logs.
REDUCTIONS: dict[str, str | Mean] = {metric.key: metric.reduction for metric in METRICS if metric.reduction is not None}


def reduction_of(key: str, *, response_metrics: Collection[str] = ()) -> str | Mean:
    """The reduction of a flat key such as "env_runners/episode_return_max".

    A token loss of your own measures means over trained tokens, so that is what an unknown key of the learner is.

    Args:
        key: flat.
        response_metrics: names in which the token loss counts responses instead.

    Raises:
        KeyError: if another key is not in `REDUCTIONS`.
    """
    key = declared_name(key)
    place, _, name = key.rpartition("/")
    if place == LEARNER and name in response_metrics:
        return TRAINED_RESPONSES
    if key not in REDUCTIONS and key.startswith(f"{LEARNER}/"):
        return TOKENS
    return REDUCTIONS[key]


def step_counts(batch: RolloutBatch, learner_metrics: Mapping[str, float]) -> dict[str, float]:
    """How much one training step has of everything that a metric can be a mean over.

    Args:
        batch: with advantages.
        learner_metrics: of its update; empty before it.
    """
    trained_of_sample = batch.trained_tokens_of_samples
    advantages = np.zeros(batch.num_samples) if batch.advantages is None else batch.advantages.astype(np.float64)
    steps = learner_metrics.get("num_optimizer_steps", 0.0)
    return {
        "responses": batch.num_samples,
        "scored_responses": int(batch.scored.sum()),
        "comparable_groups": len(np.unique(batch.group_ids[scored_with_others(batch)])),
        "trained_tokens": batch.num_trained_tokens,
        "trained_responses": int(np.count_nonzero(trained_of_sample)),
        "optimizer_steps": steps,
        "optimizer_batches": steps + learner_metrics.get("steps_without_trained_token", 0.0),
        "signal": float(np.abs(advantages) @ trained_of_sample),
    }


class IterationMetrics:
    """Logs the metrics of each training step, so that the result of an iteration is right for all its steps together.

    RLlib's logger has no mean with weights: the ones of this iteration are kept here, and it gets the mean so far.

    Args:
        response_metrics: names in which the token loss counts responses instead of tokens.
    """

    def __init__(self, response_metrics: Collection[str] = ()) -> None:
        self._response_metrics = response_metrics
        self._iteration: int | None = None
        self._totals: dict[str, tuple[float, float]] = {}

    def start_step(self, iteration: int) -> None:
        """Begins with new means if the last step belonged to another iteration."""
        if iteration != self._iteration:
            self._iteration, self._totals = iteration, {}

    def log(self, logger: MetricsLogger, key: str, values: Mapping[str, float], counts: Mapping[str, float]) -> None:
        """Logs the values of one step under `key` ("env_runners").

        Args:
            logger: the algorithm's.
            key: what stands before the names, with slashes.
            values: by name.
            counts: of `step_counts`.
        """
        for name, value in values.items():
            flat = f"{key}/{name}"
            reduction = reduction_of(flat, response_metrics=self._response_metrics)
            options: dict[str, Any] = {"reduce": reduction}
            if isinstance(reduction, Mean):
                value = self._mean(flat, value, counts[reduction.over])
            if isinstance(reduction, Mean) or reduction == LAST:
                options = {"reduce": "mean", "window": 1}
            logger.log_value(tuple(flat.split("/")), value, **options)

    def _mean(self, key: str, value: float, weight: float) -> float:
        total, weights = self._totals.get(key, (0.0, 0.0))
        self._totals[key] = total, weights = total + weight * value, weights + weight
        return total / weights if weights else value


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Reward, length and ending of the responses.

    Raises:
        ValueError: if no response could be scored.
    """
    rewards = batch.rewards[batch.scored]
    if not len(rewards):
        raise ValueError(f"None of the {batch.num_samples} responses could be scored; look at the actors' warnings.")
    comparable = scored_with_others(batch)
    metrics = {
        "episode_return_mean": float(rewards.mean()),
        "episode_return_min": float(rewards.min()),
        "episode_return_max": float(rewards.max()),
        "response_length_mean": float(batch.response_lengths.mean()),
        "truncated_fraction": float((batch.finish_reasons == FINISH_LENGTH).mean()),
        "num_episodes": float(batch.num_samples),
        "num_response_tokens": float(batch.num_response_tokens),
    }
    if comparable.any():
        groups = torch.tensor(batch.group_ids[comparable])
        fraction = zero_std_group_fraction(torch.tensor(batch.rewards[comparable]), groups)
        metrics["zero_std_group_fraction"] = float(fraction)
    return metrics


def lifetime_counts(batch: RolloutBatch, *, prompts_too_long: int, groups_sampled_again: int) -> dict[str, float]:
    """What a training step adds to the counters of a run's lifetime."""
    return {
        NUM_ENV_STEPS_SAMPLED_LIFETIME: batch.num_samples,
        "num_response_tokens_lifetime": batch.num_response_tokens,
        "unscorable_responses_lifetime": int((~batch.scored).sum()),
        "prompts_too_long_lifetime": prompts_too_long,
        "groups_sampled_again_lifetime": groups_sampled_again,
    }


def trained_counts(batch: RolloutBatch) -> dict[str, float]:
    """What a training step adds to the responses trained on: those with a trained token, once for all its epochs."""
    return {NUM_ENV_STEPS_TRAINED_LIFETIME: int(np.count_nonzero(batch.trained_tokens_of_samples))}


def evaluation_metrics(batch: RolloutBatch, *, prompts_too_long: int) -> dict[str, float]:
    """Statistics of an evaluation, over all its problems.

    A problem that can't be scored, or whose prompt leaves no room for an answer, counts with reward 0 and is reported:
    left out, it would raise the mean (MATH 10.4).

    Args:
        batch: one answer to each problem that could be played.
        prompts_too_long: problems that could not be played.
    """
    rewards = np.concatenate([np.where(batch.scored, batch.rewards, 0.0), np.zeros(prompts_too_long)])
    return {
        "episode_return_mean": float(rewards.mean()),
        "episode_return_min": float(rewards.min()),
        "episode_return_max": float(rewards.max()),
        "response_length_mean": float(batch.response_lengths.mean()),
        "truncated_fraction": float((batch.finish_reasons == FINISH_LENGTH).mean()),
        "num_episodes": float(len(rewards)),
        "unscorable_responses": float((~batch.scored).sum()),
        "prompts_too_long": float(prompts_too_long),
    }


def staleness_metrics(batch: RolloutBatch, weight_version: int) -> dict[str, float]:
    """Age in weight versions of the trained tokens (MATH 8); empty without any."""
    ages = (weight_version - batch.weight_versions)[batch.loss_mask]
    return {"mean": float(np.mean(ages)), "max": float(np.max(ages))} if len(ages) else {}
