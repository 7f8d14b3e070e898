"""Statistics of a sampled batch, before training."""

from __future__ import annotations

import numpy as np
import torch

from rlhf_algos.algorithms.base.advantages import scored_with_others
from rlhf_algos.batch import FINISH_LENGTH, RolloutBatch
from rlhf_algos.objectives import zero_std_group_fraction


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Reward, length and ending of the responses.

    Raises:
        ValueError: if no response could be scored.
    """
    rewards = batch.rewards[np.isfinite(batch.rewards)]
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


def evaluation_metrics(batch: RolloutBatch, *, prompts_too_long: int) -> dict[str, float]:
    """Statistics of an evaluation, over all its problems.

    A problem that can't be scored, or whose prompt leaves no room for an answer, counts with reward 0 and is reported:
    left out, it would raise the mean (MATH 10.4).

    Args:
        batch: one answer to each problem that could be played; NaN is the reward of one that could not be scored.
        prompts_too_long: problems that could not be played.
    """
    scored = np.isfinite(batch.rewards)
    rewards = np.concatenate([np.where(scored, batch.rewards, 0.0), np.zeros(prompts_too_long)])
    return {
        "episode_return_mean": float(rewards.mean()),
        "episode_return_min": float(rewards.min()),
        "episode_return_max": float(rewards.max()),
        "response_length_mean": float(batch.response_lengths.mean()),
        "truncated_fraction": float((batch.finish_reasons == FINISH_LENGTH).mean()),
        "num_episodes": float(len(rewards)),
        "unscorable_responses": float((~scored).sum()),
        "prompts_too_long": float(prompts_too_long),
    }


def staleness_metrics(batch: RolloutBatch, weight_version: int) -> dict[str, float]:
    """Age in weight versions of the trained tokens (MATH 8); empty without any."""
    ages = (weight_version - batch.weight_versions)[batch.loss_mask]
    return {"mean": float(np.mean(ages)), "max": float(np.max(ages))} if len(ages) else {}
