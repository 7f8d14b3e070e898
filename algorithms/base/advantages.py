"""From rewards to advantages, group by group."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.objectives import group_advantages


def with_advantages(batch: RolloutBatch, *, normalize_std: bool) -> RolloutBatch:
    """The batch with the advantages of MATH 2.1 or 2.2; 0 for a response that can't be compared with any other."""
    comparable = scored_with_others(batch)
    advantages = np.zeros(batch.num_samples, np.float32)
    if comparable.any():
        advantages[comparable] = group_advantages(
            torch.tensor(batch.rewards[comparable]),
            torch.tensor(batch.group_ids[comparable]),
            normalize_std=normalize_std,
        ).numpy()
    return dataclasses.replace(batch, advantages=advantages)


def scored_with_others(batch: RolloutBatch) -> np.ndarray:
    """`[B]` bool: responses that have a reward and at least one other member of their group that has one.

    The others have no advantage: without a reward there is nothing to compare, and alone there is nothing to compare
    with.
    """
    scored = np.isfinite(batch.rewards)
    groups, counts = np.unique(batch.group_ids[scored], return_counts=True)
    return scored & np.isin(batch.group_ids, groups[counts > 1])
