"""From rewards to advantages, group by group."""

from __future__ import annotations

import dataclasses
import logging
from typing import Protocol

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch

logger = logging.getLogger(__name__)

_LARGEST = float(np.finfo(np.float32).max)


class Advantages(Protocol):
    """How an algorithm makes advantages of rewards; its configuration's `advantages`."""

    def __call__(self, rewards: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
        """Advantages `[B]` float64 of rewards `[B]` float64, whose group ids `[B]` int64 each occur at least twice."""
        ...


def with_advantages(batch: RolloutBatch, advantages: Advantages, *, unscorable: str = "stop") -> RolloutBatch:
    """The batch with an algorithm's advantages; 0 for a response that can't be compared with any other.

    They are computed in float64 from the rewards as the environment returned them, and kept as float32.

    Args:
        batch: sampled responses.
        advantages: the algorithm's own function.
        unscorable: what happens to a group with an advantage that float32 can't hold: "stop" is an error; with
            "leave_out" its responses count as unscorable (reward NaN, not trained on).

    Raises:
        ValueError: on such a group; names it and its rewards.
    """
    values = _advantages_of(batch, advantages)
    too_large = np.abs(values) > _LARGEST
    if too_large.any():
        batch = _left_out(batch, batch.group_ids[too_large], unscorable)
        values = _advantages_of(batch, advantages)
    return dataclasses.replace(batch, advantages=values.astype(np.float32))


def _advantages_of(batch: RolloutBatch, advantages: Advantages) -> np.ndarray:
    """`[B]` float64."""
    comparable = scored_with_others(batch)
    values = np.zeros(batch.num_samples)
    if comparable.any():
        values[comparable] = advantages(
            torch.tensor(batch.rewards[comparable]), torch.tensor(batch.group_ids[comparable])
        ).numpy()
    return values


def _left_out(batch: RolloutBatch, group_ids: np.ndarray, unscorable: str) -> RolloutBatch:
    """The batch with these groups as if nobody could have scored them."""
    groups = np.unique(group_ids)
    if unscorable == "stop":
        raise ValueError(
            f"The rewards of group {groups[0]} lie further apart than float32 can hold: "
            f"{batch.rewards[batch.group_ids == groups[0]].tolist()}. Scale the reward down, use an "
            "algorithm that divides by the group's standard deviation (GRPO does), or leave such groups out "
            "(training(unscorable_responses='leave_out'))."
        )
    logger.warning("The rewards of groups %s lie further apart than float32 can hold; left out.", groups.tolist())
    return batch.without_reward(np.isin(batch.group_ids, groups))


def scored_with_others(batch: RolloutBatch) -> np.ndarray:
    """`[B]` bool: responses that have a reward and at least one other member of their group that has one.

    The others have no advantage: without a reward there is nothing to compare, and alone there is nothing to compare
    with.
    """
    groups, counts = np.unique(batch.group_ids[batch.scored], return_counts=True)
    return batch.scored & np.isin(batch.group_ids, groups[counts > 1])
