"""What each field of RLlib's `AlgorithmConfig` means here: it acts, or a changed value is refused with what to use.

RLlib has fields for every kind of reinforcement learning, and sets any of them without a word. The tables below and the
one of refused fields hold every field of RLlib 2.60 exactly once; a test fails on one that is new or gone until
somebody decides about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils import force_list

from rlhf_algos.algorithms.declarations import OPTIONS
from rlhf_algos.algorithms.refused_options import EPISODES, REFUSED
from rlhf_algos.envs import PromptSpace, UnicodeText

if TYPE_CHECKING:
    from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig


@dataclass(frozen=True)
class Used:
    """A field that acts.

    Attributes:
        what: it does.
        of_process: whether a rollout actor or learner is started with it and keeps it while it lives.
    """

    what: str
    of_process: bool = False


#: Methods of a callback class, and functions given to `callbacks(...)`, that are called.
FIRED_CALLBACKS = ("on_algorithm_init", "on_train_result", "on_evaluate_start", "on_evaluate_end")

# Methods of a learner that no update calls, and what would.
_LOSS_OF_LEARNER = {
    **dict.fromkeys(("compute_losses", "compute_loss_for_module"), "return a TokenLoss from the config's token_loss()"),
    **dict.fromkeys(("correction_weights", "trains_on_head"), "return a TokenLoss from the config's token_loss()"),
    "add_mismatch": "a TokenLoss returns the metrics of its own too",
    **dict.fromkeys(("compute_gradients", "apply_gradients"), "DeepSpeed computes and applies the gradients"),
    "postprocess_gradients": "DeepSpeed clips the gradients, see training(grad_clip=...)",
    "postprocess_gradients_for_module": "DeepSpeed clips the gradients, see training(grad_clip=...)",
}

#: Fields that act, besides the declared ones.
USED = {
    "callbacks_class": Used("its methods named in FIRED_CALLBACKS are called"),
    **{f"callbacks_{name}": Used("called") for name in FIRED_CALLBACKS},
    "num_cpus_per_env_runner": Used("CPUs that Ray counts; a whole number is also the number of threads", True),
    "num_cpus_per_learner": Used("likewise", True),
    "custom_resources_for_main_process": Used("counted by Ray"),
    "custom_resources_per_env_runner": Used("counted by Ray", True),
    "custom_resources_per_learner": Used("counted by Ray", True),
    "validate_env_runners_after_construction": Used("True waits for the actors before the learners start"),
    "env_runner_cls": Used("the rollout actor, or a subclass of it", True),
    "_learner_class": Used("a subclass of the algorithm's learner, with the same loss: that is token_loss()'s", True),
    "learner_config_dict": Used("for a learner_class of one's own to read"),
    "input_": Used("saved batches"),
    "offline_data_class": Used("reads them; set by offline_data(input_=...)"),
    "_is_online": Used("set by offline_data(input_=...)", True),
    "grad_clip_by": Used("checked: DeepSpeed clips by the global norm"),
    "evaluation_duration_unit": Used("checked: problems are counted, as episodes"),
    "stats_cls_lookup": Used("reductions of metrics logged by callbacks"),
    "_validate_config": Used("switches RLlib's own checks off, not this library's"),
}

#: Fields that RLlib or this library sets for itself, with the reason why no user's value is looked at here.
INTERNAL = {
    "algo_class": "the algorithm that the config belongs to",
    "policies": "more than one is refused as multi_agent(...); RLlib writes the one in different forms",
    "in_evaluation": "set in the copy that an evaluation gets",
    "_is_atari": "RLlib's memory of having looked at the environment",
    "_is_frozen": "whether fields may still be set",
    "_prior_exploration_config": "RLlib's memory of exploration_config",
    "_per_module_overrides": "RLlib's memory of algorithm_config_overrides_per_module",
    "_dont_auto_sync_env_runner_states": "set: rollout actors have no state but their weights",
    "simple_optimizer": "set by RLlib's validation",
}


#: Fields that are declared with type and range.
DECLARED = frozenset(option.name for option in OPTIONS if option.of_rllib)

# Values besides the default that this library sets.
_SET_HERE = {"observation_space": PromptSpace, "action_space": UnicodeText}
_DEFAULT_HERE = {"create_local_env_runner": False}
# Attributes that RLlib gives a config after it was made.
_LATER = frozenset({"class", "worker_index"})


@cache
def rllib_defaults() -> Mapping[str, Any]:
    """RLlib's own defaults, by field."""
    return dict(vars(AlgorithmConfig()))


@cache
def known_names(config_class: Any) -> frozenset[str]:
    """Names that a new config of the class has, and those that it can be asked for and told."""
    members = [member for cls in config_class.__mro__ for member in vars(cls).items()]
    properties = {name for name, value in members if isinstance(value, property)}
    return frozenset(vars(config_class())) | properties | _LATER


class UnknownOptionError(ValueError):
    """A name that no option has."""


def refuse_unknown_name(config_class: Any, name: str, shown: Callable[[], str]) -> None:
    """Raises UnknownOptionError with the nearest name if the config has no such option.

    Args:
        config_class: of the config.
        name: of the option.
        shown: how it was given, for an error; to form it may take long.
    """
    names = known_names(config_class)
    if name in names or name.startswith("_"):
        return
    close = difflib.get_close_matches(name, [known for known in names if not known.startswith("_")], 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownOptionError(f"{shown()}: {config_class.__name__} has no option {name!r}.{hint}")


def check_rllib_options(config: LanguageModelAlgorithmConfig) -> None:
    """Raises ValueError for an attribute that is no option, and for an option of RLlib that would change nothing."""
    for name, value in vars(config).items():
        refuse_unknown_name(type(config), name, partial("{}={!r}".format, name, value))
    # RLlib itself sets some of them in the copy that an evaluation gets.
    if config.in_evaluation:
        return
    for name, refused in REFUSED.items():
        value = getattr(config, name)
        if not _is_default(name, value):
            raise ValueError(f"{refused.shown(value)} has no effect here: {refused.reason}.")
    _check_callbacks_class(config)
    _check_learner_class(config)


def _is_default(name: str, value: Any) -> bool:
    if isinstance(value, _SET_HERE.get(name, ())):
        return True
    default = _DEFAULT_HERE.get(name, rllib_defaults()[name])
    return value is default or bool(isinstance(value, bool) == isinstance(default, bool) and value == default)


def _check_callbacks_class(config: LanguageModelAlgorithmConfig) -> None:
    """Looks at classes, and at what `functools.partial` makes of them; what another callable makes is seen at start."""
    for make in force_list(config.callbacks_class):
        while isinstance(make, partial):
            make = make.func
        if isinstance(make, type):
            require_fired_callbacks(make)


def _check_learner_class(config: LanguageModelAlgorithmConfig) -> None:
    own = config._learner_class
    # Only then: the import takes seconds.
    ours = None if own is None else config.get_default_learner_class()
    for name, instead in _LOSS_OF_LEARNER.items():
        if getattr(own, name, None) is not getattr(ours, name, None):
            raise ValueError(
                f"learners(learner_class={own.__name__}): its {name} has no effect here, no update calls it: {instead}."
            )


def require_fired_callbacks(cls: type) -> None:
    """Raises ValueError if a class of callbacks has a method that would never be called."""
    for name in _overridden(cls):
        raise ValueError(
            f"callbacks({cls.__name__}): its {name} has no effect here: {_reason(name)}. Called are "
            f"{', '.join(FIRED_CALLBACKS)}."
        )


def _overridden(cls: Any) -> Iterator[str]:
    for name in dir(RLlibCallback):
        changed = getattr(cls, name, None) is not getattr(RLlibCallback, name)
        if name.startswith("on_") and name not in FIRED_CALLBACKS and changed:
            yield name


def _reason(callback: str) -> str:
    known = REFUSED.get(f"callbacks_{callback}")
    return known.reason if known else EPISODES
