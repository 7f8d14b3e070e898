"""Statistics of a sampled batch, before training."""

from __future__ import annotations

import numpy as np
import torch

from rlhf_algos.batch import FINISH_LENGTH, RolloutBatch
from rlhf_algos.objectives import zero_std_group_fraction


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Reward, length and ending of the responses."""
    return {
        "episode_return_mean": float(batch.rewards.mean()),
        "episode_return_min": float(batch.rewards.min()),
        "episode_return_max": float(batch.rewards.max()),
        "response_length_mean": float(batch.response_lengths.mean()),
        "truncated_fraction": float((batch.finish_reasons == FINISH_LENGTH).mean()),
        "zero_std_group_fraction": float(
            zero_std_group_fraction(torch.tensor(batch.rewards), torch.tensor(batch.group_ids))
        ),
        "num_episodes": float(batch.num_samples),
        "num_response_tokens": float(batch.num_response_tokens),
    }


def staleness_metrics(batch: RolloutBatch, weight_version: int) -> dict[str, float]:
    """Age in weight versions of the trained tokens (MATH 8); empty without any."""
    ages = (weight_version - batch.weight_versions)[batch.loss_mask]
    return {"mean": float(np.mean(ages)), "max": float(np.max(ages))} if len(ages) else {}
