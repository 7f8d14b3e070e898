"""Sampling without a learner: batches of the model as it is on disk."""

from __future__ import annotations

from collections.abc import Iterator

from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig
from rlhf_algos.algorithms.seeds import with_seed
from rlhf_algos.batch import RolloutBatch
from rlhf_algos.driver.advantages import with_advantages
from rlhf_algos.driver.calls import on_env_runners, require_env_runners
from rlhf_algos.driver.placement import start_ray_if_needed
from rlhf_algos.driver.playing import Actors, sample_groups
from rlhf_algos.driver.saved_batches import BatchFolder


def rollout_only(config: LanguageModelAlgorithmConfig, iterations: int) -> Iterator[RolloutBatch]:
    """The batches that the first iterations would train on if no update ever changed the weights.

    Starts the configured rollout actors and nothing else; `debugging(save_batches=...)` keeps the batches, and a run
    with `offline_data(input_=...)` can train on them elsewhere.

    Args:
        config: of an algorithm.
        iterations: how many batches of `prompts_per_iteration` groups.

    Raises:
        ValueError: if the configuration is not valid, or injects a mismatch: that is done to published weights; or if
            the folder for the batches holds another run's.
    """
    config = with_seed(config.copy(copy_frozen=False))
    config.validate()
    if config.mismatch_injected().active:
        raise ValueError("rollout_only samples with the weights on disk; remove mismatch_injection(...).")
    folder = None if config.save_batches is None else BatchFolder(config.save_batches, seed=config.seed)
    start_ray_if_needed()
    group = EnvRunnerGroup(config=config, local_env_runner=False)

    def ready() -> None:
        group.probe_unhealthy_env_runners()
        on_env_runners(group, lambda runner: runner.use_loaded_weights())

    actors = Actors(group, ready, config.env_runner_restore_timeout_s)
    try:
        require_env_runners(group)
        for iteration in range(iterations):
            # Ray may have restarted an actor that nobody called meanwhile.
            ready()
            first = iteration * config.prompts_per_iteration
            groups = range(first, first + config.prompts_per_iteration)
            rollouts = sample_groups(actors, groups, weight_version=0)
            batch = with_advantages(rollouts.batch, config.advantages, unscorable=config.unscorable_responses)
            if folder is not None:
                folder.save(batch)
            yield batch
    finally:
        group.stop()
