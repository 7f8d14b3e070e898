"""Where the batches of training come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_algos.batch import RolloutBatch

#: `split` and `split_rule` of the problems that are played; nothing, or None, where they are not known.
SplitFacts = Mapping[str, str | None]


@dataclass(frozen=True)
class Rollouts:
    """What one training step trains on, before it has advantages.

    Attributes:
        batch: all groups, in the order they were asked for.
        prompts_too_long: groups that could not be played, because their prompt leaves no room for a response.
        groups_sampled_again: groups whose actor died before it returned them.
        file: that the batch was read from; None of one that was sampled.
    """

    batch: RolloutBatch
    prompts_too_long: int = 0
    groups_sampled_again: int = 0
    file: Path | None = None


class BatchSource(ABC):
    """Gives a run one batch after another."""

    @abstractmethod
    def next(self, version: int) -> Rollouts:
        """The next batch.

        Args:
            version: of the trainer's weights.
        """

    @abstractmethod
    def splits(self) -> Sequence[SplitFacts]:
        """Of the problems that are trained on."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on from here. JSON-able."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
