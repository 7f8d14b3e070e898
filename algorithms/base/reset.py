"""Starting over with another configuration, on the actors that are already running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils import force_list
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.algorithms.base.config import LanguageModelAlgorithmConfig
from rlhf_algos.algorithms.base.remote import on_env_runners, on_learners
from rlhf_algos.algorithms.base.rllib_options import USED
from rlhf_algos.algorithms.base.seeds import with_seed
from rlhf_algos.envs import PromptSpace, UnicodeText


class ResettableAlgorithm(Algorithm):
    """`reset_config`, which Tune calls with `TuneConfig(reuse_actors=True)` between two trials.

    A vLLM engine and a learner process take longer to start than a small experiment takes. A trial that leaves the
    engine and the number of processes as they are gets the running ones, with everything else made anew.
    """

    _reset_may_restart = False
    _configuration: int

    def reset(self, new_config: Mapping[str, Any], storage: Any = None) -> bool:
        """Tune's call between two trials on one actor: `reset_config`, and new processes where that is not enough.

        Tune gives a trial up as failed if its reset is refused; and whether the next trial can have this actor it
        decides by the resources of both alone.
        """
        self._reset_may_restart = True
        try:
            return super().reset(new_config, storage)
        finally:
            self._reset_may_restart = False

    def reset_config(self, new_config: LanguageModelAlgorithmConfig | Mapping[str, Any]) -> bool:
        """Makes this algorithm what a new one with `new_config` would be.

        Args:
            new_config: a configuration object or its dict.

        Returns:
            False, and nothing is changed, if it needs other engines or processes. (In `reset` they are started.)

        Raises:
            ValueError: if it is not valid.
        """
        old = self._built_config
        config = as_config(self.get_default_config(), new_config)
        same_processes = processes_of(config) == processes_of(old)
        if not (same_processes or self._reset_may_restart):
            return False
        self.metrics = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
        if not same_processes:
            self.cleanup()
            self.setup(config)
            return True
        self._started_with(config)
        self.callbacks = [cls() for cls in force_list(config.callbacks_class)]
        evaluation_config = cast(LanguageModelAlgorithmConfig, config.get_evaluation_config_object())
        evaluation_config.validate()
        evaluation_config.freeze()
        self.evaluation_config = evaluation_config
        if config.offline_data_class is not None and not config.is_online:
            self.offline_data = config.offline_data_class(config)
        self._configuration += 1
        number = self._configuration
        for group, of_group in (
            (self.env_runner_group, config),
            (self.eval_env_runner_group, evaluation_config),
        ):
            if group is not None:
                on_env_runners(group, lambda runner, of_group=of_group: runner.configure(of_group, number))
        spaces = {DEFAULT_MODULE_ID: (PromptSpace(), UnicodeText())}
        spec = config.get_multi_rl_module_spec(spaces=spaces, inference_only=False)
        on_learners(self.learner_group, lambda learner: learner.rebuild(config, spec))
        self._publish(0)
        make_callback(
            "on_algorithm_init",
            self.callbacks,
            config.callbacks_on_algorithm_init,
            kwargs={"algorithm": self, "metrics_logger": self.metrics},
        )
        return True

    def _started_with(self, config: LanguageModelAlgorithmConfig) -> None:
        raise NotImplementedError

    def _publish(self, version: int) -> None:
        raise NotImplementedError


def as_config(
    default: LanguageModelAlgorithmConfig, given: LanguageModelAlgorithmConfig | Mapping[str, Any]
) -> LanguageModelAlgorithmConfig:
    """The validated, frozen configuration that `given` is, or that it makes of `default`."""
    if isinstance(given, LanguageModelAlgorithmConfig):
        config = given.copy(copy_frozen=False)
    else:
        config = default.update_from_dict(dict(given))
    config = with_seed(config)
    config.validate()
    config.freeze()
    return config


# What counts of an option where it is not its own value: what processes get of it, perhaps with others.
_AS_USED: dict[str, Callable[[LanguageModelAlgorithmConfig], Any]] = {
    "language_model_path": lambda config: config.model_path(),
    "trainer_dtype": lambda config: config.vllm_engine_args()["dtype"],
    "vllm_args": lambda config: config.vllm_engine_args(),
    "record_routes": lambda config: config.records_routes(),
    "router_replay": lambda config: config.records_routes(),
    "_num_cpus_per_env_runner": lambda config: config.num_cpus_per_env_runner,
    "_num_cpus_per_learner": lambda config: config.num_cpus_per_learner,
    "num_threads_per_env_runner": lambda config: config.threads_per_env_runner(),
    "_learner_class": lambda config: config.learner_class,
}


def processes_of(config: LanguageModelAlgorithmConfig) -> dict[str, Any]:
    """What can't change while the processes live: every option and every field of RLlib that is declared so."""
    names = [option.name for option in config.declared_options().values() if option.of_process]
    names += [name for name, used in USED.items() if used.of_process]
    return {name: _AS_USED[name](config) if name in _AS_USED else getattr(config, name) for name in names}
