"""The learners as the loop sees them: one call per batch, and a look at what they made of the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from ray.rllib.core.learner.learner_group import LearnerGroup

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.driver.calls import on_learners
from rlhf_algos.driver.shown_responses import shown_responses


class Learners:
    """All ranks of one run.

    Args:
        group: RLlib's.

    Attributes:
        last_batch: that was trained on; None before the first update.
    """

    def __init__(self, group: LearnerGroup) -> None:
        self._group = group
        self.last_batch: RolloutBatch | None = None

    def update(self, batch: RolloutBatch, *, responses_sampled: int, weight_version: int) -> dict[str, float]:
        """Has every rank train on its part of a batch.

        Args:
            batch: with advantages.
            responses_sampled: in this run's lifetime, the time axis of learning-rate schedules.
            weight_version: of the weights before the update.

        Returns:
            Metrics of the whole batch.
        """
        self.last_batch = batch
        # Into the object store once; every rank maps the same memory.
        reference = ray.put(batch)
        return on_learners(
            self._group,
            lambda learner: learner.update_from_rollouts(
                ray.get(reference), env_steps_sampled=responses_sampled, weight_version=weight_version
            ),
        )[0]

    def shown_responses(self, model: str, *, trust_remote_code: bool) -> list[dict[str, Any]]:
        """The first responses of the last update, token by token.

        Args:
            model: whose tokenizer made them.
            trust_remote_code: run code that ships with the model.
        """
        if self.last_batch is None:
            return []
        old_logprobs: dict[int, list[float]] = {}
        for of_rank in on_learners(self._group, lambda learner: learner.shown_logprobs):
            old_logprobs |= of_rank
        return shown_responses(self.last_batch, old_logprobs, model, trust_remote_code=trust_remote_code)

    def save_pretrained(self, path: Path) -> Path:
        """Writes the model as a Hugging Face directory; returns its path."""
        on_learners(self._group, lambda learner: learner.save_pretrained(str(path)))
        return path
