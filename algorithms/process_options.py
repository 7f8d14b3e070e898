"""What a configuration says about the processes of a run."""

from __future__ import annotations

from typing import Any

from rlhf_algos.algorithms.declared_config import DeclaredConfig
from rlhf_algos.driver.placement import Placement


class ProcessOptions(DeclaredConfig):
    """A `DeclaredConfig` that leaves to the library what it does not say about processes."""

    def placement(self) -> Placement:
        """What it says about processes, and what follows from that on this machine."""
        driver = self.num_cpus_for_main_process
        default = self.declared_options()["num_cpus_for_main_process"].default
        return Placement(
            num_env_runners=self.num_env_runners,
            num_learners=self.num_learners,
            num_evaluation_env_runners=self.evaluation_num_env_runners,
            env_runner_cpus=self._num_cpus_per_env_runner,
            learner_cpus=self._num_cpus_per_learner,
            env_runner_threads=self.num_threads_per_env_runner,
            learner_threads=self.num_threads_per_learner,
            driver_cpus=None if driver == default else driver,
        )

    @property
    def num_cpus_per_env_runner(self) -> float:
        """CPUs that Ray counts for a rollout actor: what was given, or a share that fits every machine."""
        return self.placement().cpus_per_env_runner()

    @num_cpus_per_env_runner.setter
    def num_cpus_per_env_runner(self, value: float | None) -> None:
        self._num_cpus_per_env_runner = value

    @property
    def num_cpus_per_learner(self) -> float:
        """CPUs that Ray counts for a learner: what was given, or a share that fits every machine."""
        return self.placement().cpus_per_learner()

    @num_cpus_per_learner.setter
    def num_cpus_per_learner(self, value: Any) -> None:
        self._num_cpus_per_learner = None if value == "auto" else value

    def threads_per_env_runner(self) -> int:
        """Threads of a rollout actor, asked in its own process."""
        return self.placement().threads_per_env_runner()

    def threads_per_learner(self) -> int:
        """Threads of a learner, asked in its own process."""
        return self.placement().threads_per_learner()

    @property
    def env_runner_cls(self) -> type:
        """The class of the rollout actors: the one that was given, or the library's."""
        from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner

        return self._env_runner_cls or VLLMEnvRunner

    @env_runner_cls.setter
    def env_runner_cls(self, value: type | None) -> None:
        self._env_runner_cls = value

    def run_seed(self) -> int:
        """The seed of a run.

        Raises:
            ValueError: if there is none yet.
        """
        if self.seed is None:
            raise ValueError("debugging(seed=None): an algorithm draws a seed at its start.")
        return int(self.seed)
