"""Starting over with another configuration, on the actors that are already running.

A vLLM engine and a learner process take longer to start than a small experiment takes. A run that leaves the engine and
the number of processes as they are gets the running ones, with everything else made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils import force_list
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig
from rlhf_algos.algorithms.rllib_options import USED, UnknownOptionError
from rlhf_algos.algorithms.seeds import with_seed
from rlhf_algos.driver.calls import on_learners
from rlhf_algos.envs import PromptSpace, UnicodeText

if TYPE_CHECKING:
    from rlhf_algos.algorithms.algorithm import LanguageModelAlgorithm


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


def given_config(
    algorithm: type[Algorithm], given: LanguageModelAlgorithmConfig | Mapping[str, Any]
) -> LanguageModelAlgorithmConfig:
    """A configuration object as it is, of whichever class; of a dict, which Tune gives, what the algorithm makes of it.

    Raises:
        UnknownOptionError: if the dict has an option of another class.
    """
    if isinstance(given, LanguageModelAlgorithmConfig):
        return given
    default = algorithm.get_default_config()
    try:
        return cast(LanguageModelAlgorithmConfig, default.update_from_dict(dict(given)))
    except UnknownOptionError as error:
        raise UnknownOptionError(
            f"{error} A dict, as Tune hands it to a trial, does not say which configuration class it is of: "
            f"{algorithm.__name__}.get_default_config() returns a {type(default).__name__}. For options of a class of "
            "your own give Tune a subclass of the algorithm whose get_default_config returns that class."
        ) from None


def evaluation_config_of(config: LanguageModelAlgorithmConfig) -> LanguageModelAlgorithmConfig:
    """The validated, frozen configuration of a run's evaluations."""
    evaluation = cast(LanguageModelAlgorithmConfig, config.get_evaluation_config_object())
    evaluation.validate()
    evaluation.freeze()
    return evaluation


def rebuild_learners(learners: LearnerGroup, config: LanguageModelAlgorithmConfig) -> None:
    """Has every rank start over with a configuration, in its process and process group."""
    spaces = {DEFAULT_MODULE_ID: (PromptSpace(), UnicodeText())}
    spec = config.get_multi_rl_module_spec(spaces=spaces, inference_only=False)
    on_learners(learners, lambda learner: learner.rebuild(config, spec))


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


def start_over(
    algorithm: LanguageModelAlgorithm, config: LanguageModelAlgorithmConfig, *, same_processes: bool
) -> None:
    """Makes an algorithm what a new one would be.

    Args:
        algorithm: that runs.
        config: of the new run, validated.
        same_processes: whether its processes go on; else they are ended and others are started.
    """
    algorithm.metrics = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
    if not same_processes:
        algorithm.cleanup()
        algorithm.setup(config)
        return
    algorithm.parts.publication.end()
    algorithm.begin(config)
    algorithm.callbacks = [make() for make in force_list(config.callbacks_class)]
    algorithm.evaluation_config = evaluation_config_of(config)
    if config.offline_data_class is not None and not config.is_online:
        algorithm.offline_data = config.offline_data_class(config)
    algorithm.configuration += 1
    algorithm.compose()
    for crew in algorithm.parts.crews:
        crew.configure()
    rebuild_learners(algorithm.learner_group, config)
    algorithm.parts.publication.publish(0)
    algorithm.call_back("on_algorithm_init")
