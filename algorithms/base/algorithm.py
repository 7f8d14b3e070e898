"""The loop: prompts, responses, rewards, advantages, update, new weights.

sample_groups -> group_advantages -> learners.update_from_rollouts -> publish -> distribute
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import ray
from ray import tune
from ray.exceptions import RayError
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    TIMERS,
)

from rlhf_algos.algorithms.base import weights
from rlhf_algos.algorithms.base.advantages import with_advantages
from rlhf_algos.algorithms.base.config import LanguageModelAlgorithmConfig
from rlhf_algos.algorithms.base.evaluation import EvaluationOnRolloutActors
from rlhf_algos.algorithms.base.metrics import (
    ALL_LEARNERS,
    LEARNER,
    STALENESS,
    IterationMetrics,
    lifetime_counts,
    rollout_metrics,
    staleness_metrics,
    step_counts,
    trained_counts,
)
from rlhf_algos.algorithms.base.no_checkpoints import WithoutCheckpoints
from rlhf_algos.algorithms.base.remote import on_learners, require_env_runners
from rlhf_algos.algorithms.base.reset import ResettableAlgorithm
from rlhf_algos.algorithms.base.resources import bundles_of_trial, check_resources, thread_summary
from rlhf_algos.algorithms.base.rllib_options import UnknownOptionError, require_fired_callbacks
from rlhf_algos.algorithms.base.roll_call import Standing, bring_up_to_date
from rlhf_algos.algorithms.base.rollouts import Actors, Rollouts, sample_groups
from rlhf_algos.algorithms.base.saved_batches import BatchFolder, folder_of_try
from rlhf_algos.algorithms.base.seeds import with_seed
from rlhf_algos.algorithms.base.shown_responses import load_tokenizer, shown_responses
from rlhf_algos.algorithms.base.side_by_side import forget_locals, learners_starting
from rlhf_algos.batch import RolloutBatch
from rlhf_algos.rollout.mismatch_injection import MismatchInjection
from rlhf_algos.weight_sync import SharedWeights

logger = logging.getLogger(__name__)


class LanguageModelAlgorithm(EvaluationOnRolloutActors, ResettableAlgorithm, WithoutCheckpoints, Algorithm):
    """Synchronous on-policy training of a language model. Subclasses bring a config and a learner's loss."""

    config: LanguageModelAlgorithmConfig
    _last_batch: RolloutBatch | None = None

    # ---- building -----------------------------------------------------------------------------------------------

    def setup(self, config: LanguageModelAlgorithmConfig | Mapping[str, Any]) -> None:
        """Starts rollout actors and learners, and gives the actors the trainer's weights."""
        config = with_seed(self._as_given(config))
        if ray.util.get_current_placement_group() is None:
            check_resources(self.default_resource_request(config).bundles)
        self._shared_weights = SharedWeights()
        # An evaluation beside training reads weights while new ones are written.
        self._publication = threading.Lock()
        # Of the actors' configuration: counted up by each reset.
        self._configuration = 0
        self._evaluated_version: int | None = None
        try:
            self._started_with(config)
            self._start_processes(config)
            self._publish(0)
        except BaseException as error:
            self._end_processes()
            forget_locals(error)
            self.abandon()
            raise

    def _start_processes(self, config: LanguageModelAlgorithmConfig) -> None:
        try:
            with learners_starting(config, self._require_env_runners):
                super().setup(config)
        except (IndexError, RayError):
            # RLlib's, where an actor is dead: it does not say which.
            self._require_env_runners()
            raise
        self._require_env_runners()

    def _require_env_runners(self) -> None:
        """Waits for the actors to be built, those for evaluation too, and raises what kept one from it."""
        if self.env_runner_group is not None:
            require_env_runners(self.env_runner_group)
        if self.eval_env_runner_group is not None:
            require_env_runners(self.eval_env_runner_group, what="evaluation actor")

    def _end_processes(self) -> None:
        """After a failure: ends actors and learners, which would otherwise live as long as this object."""
        for group in (self.env_runner_group, self.eval_env_runner_group):
            if group is not None:
                # At once: `stop` would wait for those that are still being built.
                group.reset([])
        learners = getattr(self, "learner_group", None)
        if learners is not None:
            try:
                learners.shutdown()
            except Exception:
                logger.exception("The learners could not be ended.")

    def _started_with(self, config: LanguageModelAlgorithmConfig) -> None:
        """Counters and configuration of a run at its start."""
        folder = config.save_batches
        if folder is not None and self._storage is not None:
            folder = str(folder_of_try(folder, self.trial_id))
        self._batch_folder = None if folder is None else BatchFolder(folder, seed=config.seed)
        self.config = self._built_config = config
        self._weight_version = 0
        self._next_group = 0
        self._last_batch = None
        self._training_splits: list[dict[str, str]] | None = None
        self._step_metrics = IterationMetrics()
        logger.info("Seed %d. Threads: %s.", config.seed, thread_summary(config))
        if config.mismatch_injected().active:
            logger.warning("The sampler is made worse on purpose: %s.", config.mismatch_injected())

    @classmethod
    def _as_given(cls, config: LanguageModelAlgorithmConfig | Mapping[str, Any]) -> LanguageModelAlgorithmConfig:
        """A configuration object as it is, of whichever class; of a dict, which Tune gives, what `cls` makes of it.

        Raises:
            UnknownOptionError: if the dict has an option of another class.
        """
        if isinstance(config, LanguageModelAlgorithmConfig):
            return config
        default = cls.get_default_config()
        try:
            return cast(LanguageModelAlgorithmConfig, default.update_from_dict(dict(config)))
        except UnknownOptionError as error:
            raise UnknownOptionError(
                f"{error} A dict, as Tune hands it to a trial, does not say which configuration class it is of: "
                f"{cls.__name__}.get_default_config() returns a {type(default).__name__}. For options of a class of "
                "your own give Tune a subclass of the algorithm whose get_default_config returns that class."
            ) from None

    @classmethod
    def default_resource_request(cls, config: Any) -> Any:
        """The placement group of a trial: one bundle for the driver and one per rollout actor and learner."""
        given = cls._as_given(config)
        # RLlib would make a configuration of the algorithm's own class of it, which need not have all its options.
        own = {"get_default_config": classmethod(lambda cls: given.copy(copy_frozen=False))}
        of_given: type[LanguageModelAlgorithm] = type(cls.__name__, (cls,), own)
        request = super(LanguageModelAlgorithm, of_given).default_resource_request({})
        if ray.is_initialized():
            bundles = bundles_of_trial(request.bundles, given)
            request = tune.PlacementGroupFactory(bundles, strategy=request.strategy)
        if ray.is_initialized() and ray.util.get_current_placement_group() is None:
            check_resources(request.bundles)
        return request

    @property
    def callbacks(self) -> list[RLlibCallback]:
        """The objects that the configured callback classes, or other callables, made."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: list[RLlibCallback]) -> None:
        # RLlib sets them before it starts anything; what a function makes can't be seen before that.
        for callback in callbacks:
            require_fired_callbacks(type(callback))
        self._callbacks = callbacks

    def cleanup(self) -> None:
        """Stops all actors and frees the shared memory."""
        try:
            super().cleanup()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Frees the shared memory and leaves the actors, for a driver that ends Ray without waiting for them."""
        if hasattr(self, "_shared_weights"):
            self._shared_weights.close()

    # ---- one iteration ------------------------------------------------------------------------------------------

    def training_step(self) -> None:
        """One step; results are logged under RLlib's keys. An iteration (`train()`) has one or several steps."""
        self._step_metrics.start_step(self._iteration)
        with self.metrics.log_time((TIMERS, "sample"), reduce="mean"):
            rollouts = self._next_rollouts()
        batch = self._with_advantages(rollouts.batch)
        self._log_rollouts(dataclasses.replace(rollouts, batch=batch))
        if self._batch_folder is not None:
            self._batch_folder.save(batch)
        with self.metrics.log_time((TIMERS, "learner_update"), reduce="mean"):
            learner_metrics = self._update(batch)
        counts = step_counts(batch, learner_metrics)
        self._step_metrics.log(self.metrics, LEARNER, learner_metrics, counts)
        self._step_metrics.log(self.metrics, ALL_LEARNERS, trained_counts(batch), counts)
        if learner_metrics["num_optimizer_steps"]:
            with self.metrics.log_time((TIMERS, "weight_sync"), reduce="mean"):
                self._publish(self._weight_version + 1)

    def _next_rollouts(self) -> Rollouts:
        if self.offline_data is None:
            return self._sample()
        return Rollouts(self.offline_data.next_batch(weight_version=self._weight_version), 0, 0)

    def _with_advantages(self, rollouts: RolloutBatch) -> RolloutBatch:
        batch = with_advantages(rollouts, self.config.advantages, unscorable=self.config.unscorable_responses)
        if self.offline_data is not None:
            self.offline_data.note_recomputed(rollouts, batch)
        return batch

    def _sample(self) -> Rollouts:
        first = self._next_group
        self._next_group += self.config.prompts_per_iteration
        self._bring_up_to_date(self.env_runner_group, self._sampler_version, self.config.mismatch_injected())
        actors = Actors(
            group=self.env_runner_group,
            restore=lambda: self.restore_env_runners(self.env_runner_group),
            patience_s=self.config.env_runner_restore_timeout_s,
            marks=self._shared_weights.folder / "sampling",
        )
        return sample_groups(actors, range(first, self._next_group), weight_version=self._sampler_version)

    def _update(self, batch: RolloutBatch) -> dict[str, float]:
        steps = self._episodes_sampled()
        self._last_batch = batch
        # Into the object store once; every rank maps the same memory.
        reference = ray.put(batch)
        return on_learners(
            self.learner_group,
            lambda learner: learner.update_from_rollouts(ray.get(reference), env_steps_sampled=steps),
        )[0]

    def shown_responses(self) -> list[dict[str, Any]]:
        """The first responses of the last iteration: `prompt`, `reward` and, per trained token, `tokens` (text),
        `rollout_logprobs` (log q) and `old_logprobs` (log p0); what a report colours by its mismatch.
        """
        if self._last_batch is None:
            return []
        old_logprobs: dict[int, list[float]] = {}
        for of_rank in on_learners(self.learner_group, lambda learner: learner.shown_logprobs):
            old_logprobs |= of_rank
        tokenizer = load_tokenizer(self.config.model_path(), trust_remote_code=self.config.trust_remote_code)
        return shown_responses(self._last_batch, old_logprobs, tokenizer)

    def _episodes_sampled(self) -> int:
        return int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))

    def _log_rollouts(self, rollouts: Rollouts) -> None:
        batch, log = rollouts.batch, self._step_metrics.log
        counts = step_counts(batch, {})
        log(self.metrics, ENV_RUNNER_RESULTS, rollout_metrics(batch), counts)
        lifetime = lifetime_counts(
            batch, prompts_too_long=rollouts.prompts_too_long, groups_sampled_again=rollouts.groups_sampled_again
        )
        log(self.metrics, ENV_RUNNER_RESULTS, lifetime, counts)
        log(self.metrics, STALENESS, staleness_metrics(batch, self._weight_version), counts)

    # ---- weights and actors -------------------------------------------------------------------------------------

    @property
    def _sampler_version(self) -> int:
        """Version of the weights that the rollout actors sample with."""
        return self.config.mismatch_injected().sampler_version(self._weight_version)

    def _publish(self, version: int) -> None:
        """The trainer's weights become `version`, and the actors get the one they are to sample with.

        The version counts once its file is whole: an evaluation beside training may ask for it at any time.
        """
        if self.env_runner_group is not None or self.eval_env_runner_group is not None:
            weights.publish(self.learner_group, self._shared_weights, version)
        with self._publication:
            self._weight_version = version
        if self.env_runner_group is not None:
            self._bring_up_to_date(self.env_runner_group, self._sampler_version, self.config.mismatch_injected())
        with self._publication:
            needed = self._sampler_version if self._evaluated_version is None else self._evaluated_version
            self._shared_weights.remove_older(min(self._sampler_version, needed))

    def _bring_up_to_date(self, group: EnvRunnerGroup, version: int, injection: MismatchInjection) -> None:
        """Gives the actors this run's configuration and these weights, those that don't have them."""

        def load(actors: list[int]) -> None:
            weights.distribute(
                group, self._shared_weights, version, seed=self.config.seed, actors=actors, injection=injection
            )

        config = self.config if group is self.env_runner_group else self.evaluation_config
        bring_up_to_date(group, Standing(self._configuration, version, injection), config=config, load=load)

    def restore_env_runners(self, env_runner_group: EnvRunnerGroup | None) -> list[int]:
        """RLlib's own; an actor that it brings back gets configuration and weights before it samples anything."""
        if env_runner_group is None:
            return []
        restored = list(env_runner_group.probe_unhealthy_env_runners())
        if restored and env_runner_group is self.env_runner_group:
            self._bring_up_to_date(env_runner_group, self._sampler_version, self.config.mismatch_injected())
        return restored

    def save_pretrained(self, path: str | Path) -> Path:
        """Writes the trained model as a Hugging Face directory, which `language_model(path)` loads again."""
        path = Path(path).absolute()
        on_learners(self.learner_group, lambda learner: learner.save_pretrained(str(path)))
        return path
