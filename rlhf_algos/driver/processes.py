"""The actors and learners of an algorithm: waited for, and ended after a failure."""

from __future__ import annotations

import logging

from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.driver.calls import require_env_runners

logger = logging.getLogger(__name__)


def require_actors(rollout: EnvRunnerGroup | None, evaluation: EnvRunnerGroup | None) -> None:
    """Waits for the actors to be built, those for evaluation too, and raises what kept one from it."""
    if rollout is not None:
        require_env_runners(rollout)
    if evaluation is not None:
        require_env_runners(evaluation, what="evaluation actor")


def end_processes(
    rollout: EnvRunnerGroup | None, evaluation: EnvRunnerGroup | None, learners: LearnerGroup | None
) -> None:
    """After a failure: ends actors and learners, which would otherwise live as long as the algorithm."""
    for group in (rollout, evaluation):
        if group is not None:
            # At once: `stop` would wait for those that are still being built.
            group.reset([])
    if learners is not None:
        try:
            learners.shutdown()
        except Exception:
            logger.exception("The learners could not be ended.")
