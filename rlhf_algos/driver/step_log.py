"""What each training step did, logged under RLlib's keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.driver.batch_metrics import (
    IterationMetrics,
    lifetime_counts,
    rollout_metrics,
    staleness_metrics,
    step_counts,
    trained_counts,
)
from rlhf_algos.driver.source import Rollouts
from rlhf_algos.metrics import ALL_LEARNERS, LEARNER, STALENESS


class StepLog:
    """Logs the steps of one run, several of which may make one iteration.

    Args:
        logger: the algorithm's.
        response_metrics: names in which its token loss counts responses instead of tokens.
    """

    def __init__(self, logger: MetricsLogger, response_metrics: Collection[str] = ()) -> None:
        self._logger, self._metrics = logger, IterationMetrics(response_metrics)
        self._sampled_before = 0

    def start_step(self, iteration: int) -> None:
        """A step of this iteration (`train()`) begins."""
        self._metrics.start_step(iteration)

    def sampled(self, rollouts: Rollouts, *, weight_version: int) -> None:
        """Logs what is trained on, advantages included.

        Args:
            rollouts: of this step.
            weight_version: the trainer's.
        """
        batch = rollouts.batch
        counts = step_counts(batch, {})
        lifetime = lifetime_counts(
            batch, prompts_too_long=rollouts.prompts_too_long, groups_sampled_again=rollouts.groups_sampled_again
        )
        self._metrics.log(self._logger, ENV_RUNNER_RESULTS, rollout_metrics(batch), counts)
        self._metrics.log(self._logger, ENV_RUNNER_RESULTS, lifetime, counts)
        self._metrics.log(self._logger, STALENESS, staleness_metrics(batch, weight_version), counts)

    def trained(self, batch: RolloutBatch, learner_metrics: Mapping[str, float]) -> None:
        """Logs what the learners made of the batch."""
        counts = step_counts(batch, learner_metrics)
        self._metrics.log(self._logger, LEARNER, learner_metrics, counts)
        self._metrics.log(self._logger, ALL_LEARNERS, trained_counts(batch), counts)

    def responses_sampled(self) -> int:
        """Responses of the run's lifetime, those of this step included once they are logged."""
        logged = int(self._logger.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))
        return self._sampled_before + logged

    def state(self) -> dict[str, Any]:
        """What schedules go on from: the responses sampled. JSON-able."""
        return {"responses_sampled": self.responses_sampled()}

    def restore(self, state: dict[str, Any]) -> None:
        """Counts on from there; the logged lifetime counts are RLlib's, and begin at 0."""
        self._sampled_before = state["responses_sampled"]
