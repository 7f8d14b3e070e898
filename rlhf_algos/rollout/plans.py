"""Which episodes are played: an episode's identity alone decides its problem and its noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_algos.rollout.sampling import request_seed

# Keep the noise of training, of evaluations and of environments apart.
_TRAINING, _EVALUATION, _ENVIRONMENT = 0, 1, 2


@dataclass(frozen=True)
class Episode:
    """One planned episode.

    Attributes:
        key: of its request, unique in the process.
        sample: its id.
        group: of its group; the members of one answer the same prompt.
        reset: arguments of the environment's `reset`.
        seed: of the sampled tokens' noise.
    """

    key: str
    sample: int
    group: int
    reset: Mapping[str, Any]
    seed: int


def plan_of_groups(group_ids: Sequence[int], *, size: int, seed: int) -> list[Episode]:
    """`size` episodes for each group, whose members reset their environment with one seed."""
    return [
        Episode(
            key=f"training-{group * size + member}",
            sample=group * size + member,
            group=group,
            reset={"seed": request_seed(seed, _ENVIRONMENT, group) % 2**31},
            seed=request_seed(seed, _TRAINING, group * size + member),
        )
        for group in group_ids
        for member in range(size)
    ]


def plan_of_evaluation(indices: Sequence[int], *, seed: int) -> list[Episode]:
    """One episode for each problem, given by its place in the environment's fixed order."""
    return [
        Episode(
            f"evaluation-{index}", index, index, {"options": {"index": index}}, request_seed(seed, _EVALUATION, index)
        )
        for index in indices
    ]
