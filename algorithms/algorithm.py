"""The loop: prompts, responses, rewards, advantages, update, new weights.

source.next -> advantages -> learners.update -> publication.publish_next
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, TIMERS

from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig
from rlhf_algos.algorithms.fired_callbacks import FiredCallbacks
from rlhf_algos.algorithms.no_checkpoints import WithoutCheckpoints
from rlhf_algos.algorithms.parts import Parts, Processes, compose
from rlhf_algos.algorithms.reset import as_config, given_config, processes_of, start_over
from rlhf_algos.algorithms.seeds import with_seed
from rlhf_algos.driver.advantages import with_advantages
from rlhf_algos.driver.placement import check_resources, request_of_trial
from rlhf_algos.driver.processes import end_processes, require_actors
from rlhf_algos.driver.saved_batches import BatchFolder, batch_folder_of
from rlhf_algos.driver.saved_source import warn_of_other_advantages
from rlhf_algos.driver.side_by_side import forget_locals, learners_starting
from rlhf_algos.driver.source import Rollouts
from rlhf_algos.driver.step_log import StepLog
from rlhf_algos.owned_folders import OwnedFolder
from rlhf_algos.weight_sync import channel_maker
from rlhf_algos.weight_sync.shared_memory import SHARED_MEMORY

logger = logging.getLogger(__name__)


class LanguageModelAlgorithm(FiredCallbacks, WithoutCheckpoints, Algorithm):
    """Synchronous on-policy training of a language model: RLlib's face of the parts that do the work.

    Subclasses bring a configuration, and in it the loss.

    Attributes:
        parts: of the run: `source`, `learners`, `publication` and `evaluator`.
        step_log: logs each training step.
        batch_folder: where batches are kept, if they are.
        configuration: number of the configuration that holds, counted up by each reset.
    """

    config: LanguageModelAlgorithmConfig
    parts: Parts
    step_log: StepLog
    batch_folder: BatchFolder | None = None
    configuration = 0
    _reset_may_restart, _shared = False, ExitStack()

    def setup(self, config: LanguageModelAlgorithmConfig | Mapping[str, Any]) -> None:
        """Starts rollout actors and learners, and gives the actors the trainer's weights."""
        config = with_seed(given_config(type(self), config))
        if ray.util.get_current_placement_group() is None:
            check_resources(self.default_resource_request(config).bundles)
        self._shared, self.configuration = ExitStack(), 0
        self._channel = self._shared.enter_context(closing(channel_maker(config.weight_channel)()))
        self._marks = self._shared.enter_context(closing(OwnedFolder(SHARED_MEMORY)))
        try:
            self.begin(config)
            self._start_processes(config)
            self.compose()
            self.parts.publication.publish(0)
            self.call_back("on_algorithm_init")
        except BaseException as error:
            end_processes(self.env_runner_group, self.eval_env_runner_group, self.learner_group)
            forget_locals(error)
            self.abandon()
            raise

    def begin(self, config: LanguageModelAlgorithmConfig) -> None:
        """Takes over the configuration of a run that starts, and begins its records."""
        trial_id = self.trial_id if config.save_batches and self._storage else None
        self.batch_folder = batch_folder_of(config.save_batches, seed=config.seed, trial_id=trial_id)
        # Before a reset Tune puts the next trial's into `config`.
        self.config = self._built_config = config
        self.step_log = StepLog(self.metrics, self.config.token_loss().response_metrics)
        logger.info("Seed %d. Threads: %s.", config.seed, config.placement().thread_summary())
        if config.mismatch_injected().active:
            logger.warning("The sampler is made worse on purpose: %s.", config.mismatch_injected())

    def _start_processes(self, config: LanguageModelAlgorithmConfig) -> None:
        def require() -> None:
            require_actors(self.env_runner_group, self.eval_env_runner_group)

        try:
            with learners_starting(config, require), self.no_callbacks(config):
                super().setup(config)
        except (IndexError, RayError):
            # RLlib's, where an actor is dead: it does not say which.
            require()
            raise
        require()

    def compose(self) -> None:
        """Makes the parts of a run, over the processes that are there."""
        self.parts = compose(
            Processes(self.env_runner_group, self.eval_env_runner_group, self.learner_group, self.offline_data),
            self.config,
            self.evaluation_config if self.eval_env_runner_group is not None else None,
            number=self.configuration,
            channel=self._channel,
            marks=self._marks.path,
        )

    @classmethod
    def default_resource_request(cls, config: Any) -> Any:
        """The placement group of a trial: one bundle for the driver and one per rollout actor and learner."""
        given = given_config(cls, config)
        # RLlib would make a configuration of the algorithm's own class of it, which need not have all its options.
        own = {"get_default_config": classmethod(lambda cls: given.copy(copy_frozen=False))}
        of_given: type[LanguageModelAlgorithm] = type(cls.__name__, (cls,), own)
        return request_of_trial(super(LanguageModelAlgorithm, of_given).default_resource_request({}), given.placement())

    def reset(self, new_config: Mapping[str, Any], storage: Any = None) -> bool:
        """Tune's call between two trials on one actor: `reset_config`, and new processes where that is not enough.

        If a reset is refused Tune gives the trial up as failed, whose actor it chose by the resources alone.
        """
        self._reset_may_restart = True
        try:
            return super().reset(new_config, storage)
        finally:
            self._reset_may_restart = False

    def reset_config(self, new_config: LanguageModelAlgorithmConfig | Mapping[str, Any]) -> bool:
        """Makes this algorithm what a new one with `new_config`, an object or its dict, would be.

        Returns:
            False, and nothing is changed, if it needs other engines or processes. (In `reset` they are started.)
        """
        config = as_config(self.get_default_config(), new_config)
        same_processes = processes_of(config) == processes_of(self._built_config)
        possible = same_processes or self._reset_may_restart
        if possible:
            start_over(self, config, same_processes=same_processes)
        return possible

    def cleanup(self) -> None:
        """Stops all actors and frees the shared memory."""
        try:
            super().cleanup()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Frees the shared memory, once, and leaves the actors, for a driver that ends Ray without waiting for them."""
        self._shared.close()

    def training_step(self) -> None:
        """One step; results are logged under RLlib's keys. An iteration (`train()`) has one or several steps."""
        version = self.parts.publication.version
        self.step_log.start_step(self._iteration)
        with self._timed("sample"):
            rollouts = self.parts.source.next(version)
        rollouts = self._with_advantages(rollouts)
        self.step_log.sampled(rollouts, weight_version=version)
        if self.batch_folder is not None:
            self.batch_folder.save(rollouts.batch)
        sampled = self.step_log.responses_sampled()
        with self._timed("learner_update"):
            metrics = self.parts.learners.update(rollouts.batch, responses_sampled=sampled, weight_version=version)
        self.step_log.trained(rollouts.batch, metrics)
        if metrics["num_optimizer_steps"]:
            with self._timed("weight_sync"):
                self.parts.publication.publish_next()

    def _timed(self, phase: str) -> AbstractContextManager[None]:
        return cast(AbstractContextManager[None], self.metrics.log_time((TIMERS, phase), reduce="mean"))

    def _with_advantages(self, rollouts: Rollouts) -> Rollouts:
        config, saved = self.config, rollouts.batch
        batch = with_advantages(saved, config.advantages, unscorable=config.unscorable_responses)
        if rollouts.file is not None:
            warn_of_other_advantages(rollouts.file, saved, batch, rule=f"{type(config).__name__}.advantages")
        return dataclasses.replace(rollouts, batch=batch)

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Plays the evaluation problems with the current weights; beside training for as long as that takes.

        Returns:
            `{"env_runners": {"episode_return_mean": ..., "greedy_return_mean": ..., ...}}`, of the trainer's policy.

        Raises:
            ValueError: if there is no engine, or there are fewer problems than `evaluation_duration`.
        """
        evaluator = self.parts.required_evaluator()
        self.call_back("on_evaluate_start")
        evaluation = {ENV_RUNNER_RESULTS: evaluator.evaluate()}
        self.call_back("on_evaluate_end", evaluation_metrics=evaluation)
        return evaluation

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: Any) -> bool:
        # By default RLlib would start a second engine, in the driver.
        return eval_config.evaluation_num_env_runners > 0

    def restore_env_runners(self, env_runner_group: EnvRunnerGroup | None) -> list[int]:
        """RLlib's own; a rollout actor that it brings back gets configuration and weights before it samples."""
        return self.parts.restore_actors(env_runner_group)

    def shown_responses(self) -> list[dict[str, Any]]:
        """The first responses of the last iteration: `prompt`, `reward` and, per trained token, `tokens` (text),
        `rollout_logprobs` (log q) and `old_logprobs` (log p0); what a report colours by its mismatch.
        """
        model, trusted = self.config.model_path(), self.config.trust_remote_code
        return self.parts.learners.shown_responses(model, trust_remote_code=trusted)

    def save_pretrained(self, path: str | Path) -> Path:
        """Writes the trained model as a Hugging Face directory, which `language_model(path)` loads again."""
        return self.parts.learners.save_pretrained(Path(path).absolute())
