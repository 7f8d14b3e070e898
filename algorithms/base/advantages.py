"""From rewards to advantages, group by group."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.objectives import group_advantages

logger = logging.getLogger(__name__)

_LARGEST = float(np.finfo(np.float32).max)


def with_advantages(batch: RolloutBatch, *, normalize_std: bool, unscorable: str = "stop") -> RolloutBatch:
    """The batch with the advantages of MATH 2.1 or 2.2; 0 for a response that can't be compared with any other.

    They are computed in float64 from the rewards as the environment returned them, and kept as float32. Only
    undivided advantages can be too large for that.

    Args:
        batch: sampled responses.
        normalize_std: divide by the group's standard deviation.
        unscorable: what happens to a group whose rewards lie further apart than float32 can hold, if they are not
            divided: "stop" is an error; with "leave_out" its responses count as unscorable (reward NaN, not trained
            on).

    Raises:
        ValueError: on such a group; names it and its rewards.
    """
    if not normalize_std:
        batch = _without_too_large(batch, unscorable)
    comparable = scored_with_others(batch)
    advantages = np.zeros(batch.num_samples, np.float32)
    if comparable.any():
        advantages[comparable] = group_advantages(
            torch.tensor(batch.rewards[comparable]),
            torch.tensor(batch.group_ids[comparable]),
            normalize_std=normalize_std,
        ).numpy()
    return dataclasses.replace(batch, advantages=advantages)


def _without_too_large(batch: RolloutBatch, unscorable: str) -> RolloutBatch:
    """The batch with those groups as if nobody could have scored them, whose advantages float32 can't hold."""
    groups, of_sample = np.unique(batch.group_ids, return_inverse=True)
    highest, lowest = np.full(len(groups), -np.inf), np.full(len(groups), np.inf)
    np.maximum.at(highest, of_sample[batch.scored], batch.rewards[batch.scored])
    np.minimum.at(lowest, of_sample[batch.scored], batch.rewards[batch.scored])
    with np.errstate(over="ignore"):
        too_large = highest - lowest > _LARGEST
    if not too_large.any():
        return batch
    first = groups[too_large][0]
    if unscorable == "stop":
        raise ValueError(
            f"The rewards of group {first} lie further apart than float32 can hold: "
            f"{batch.rewards[batch.group_ids == first].tolist()}. Scale the reward down, divide by the group's "
            "standard deviation (training(normalize_std=True)), or leave such groups out "
            "(training(unscorable_responses='leave_out'))."
        )
    logger.warning(
        "The rewards of groups %s lie further apart than float32 can hold; left out.", groups[too_large].tolist()
    )
    return batch.without_reward(too_large[of_sample])


def scored_with_others(batch: RolloutBatch) -> np.ndarray:
    """`[B]` bool: responses that have a reward and at least one other member of their group that has one.

    The others have no advantage: without a reward there is nothing to compare, and alone there is nothing to compare
    with.
    """
    groups, counts = np.unique(batch.group_ids[batch.scored], return_counts=True)
    return batch.scored & np.isin(batch.group_ids, groups[counts > 1])
