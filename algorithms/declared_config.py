"""What a configuration holds: the declared options, their defaults, and how a configuration is copied."""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

from gymnasium.envs.registration import EnvSpec
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided

from rlhf_algos.algorithms import declarations
from rlhf_algos.algorithms.options import Option, by_name
from rlhf_algos.algorithms.rllib_options import refuse_unknown_name
from rlhf_algos.envs.registration import registered
from rlhf_algos.objectives.reduction import ReductionMode


class DeclaredConfig(AlgorithmConfig):
    """An `AlgorithmConfig` whose options are declared once, with type, range and default."""

    # What names of environments mean in the process that this configuration comes from.
    _known_environments: Mapping[str, EnvSpec] = MappingProxyType({})

    OPTIONS: ClassVar[tuple[Option, ...]] = declarations.OPTIONS
    # language_model()
    language_model_path: str
    trainer_dtype: str
    gradient_checkpointing: bool
    trust_remote_code: bool
    # sampling()
    temperature: float
    top_p: float
    top_k: int
    max_response_tokens: int
    stop_token_ids: Sequence[int]
    record_head: int
    record_routes: bool
    greedy_evaluation: bool
    # mismatch_injection()
    injected_weight_noise: float
    injected_rounding_bits: int | None
    injected_lag: int
    # env_runners(), learners()
    _num_cpus_per_env_runner: float | None
    _num_cpus_per_learner: float | None
    num_threads_per_env_runner: int | None
    weight_channel: Any
    num_threads_per_learner: int | None
    # vllm()
    vllm_args: dict[str, Any]
    # deepspeed()
    zero_stage: int
    offload_optimizer: bool
    token_budget: int
    deepspeed_config: dict[str, Any]
    # training()
    prompts_per_iteration: int
    group_size: int
    normalize_std: bool
    loss_reduction: ReductionMode
    loss_fixed_length: int | None
    unscorable_responses: str
    corrector: Any
    router_replay: Any
    adam_betas: Sequence[float]
    adam_eps: float
    weight_decay: float
    # debugging()
    save_batches: str | None
    # offline_data()
    accept_different: Sequence[str]

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class)
        for option in self.declared_options().values():
            setattr(self, option.name, copy.deepcopy(option.default))
        # Where RLlib's defaults don't fit.
        self.create_local_env_runner = False
        # Nothing waits for the actors until all, those for evaluation as well, and the learners are starting;
        # `require_env_runners` then asks them, and says which one did not come up.
        self.validate_env_runners_after_construction = False
        self._dont_auto_sync_env_runner_states = True
        self.enable_rl_module_and_learner = True
        self.enable_env_runner_and_connector_v2 = True

    @classmethod
    def declared_options(cls) -> dict[str, Option]:
        """The declared options of this class by attribute, with those of its base classes."""
        bases = reversed(cls.__mro__)
        return by_name(option for base in bases for option in vars(base).get("OPTIONS", ()))

    def refuse_unknown_arguments(self, section: str, arguments: Iterable[str]) -> None:
        """Raises TypeError, as Python would, for an argument that a section does not have; says the nearest.

        Args:
            section: a method that RLlib may have, too.
            arguments: that no signature of ours has.
        """
        of_rllib = getattr(AlgorithmConfig, section, None)
        known = set() if of_rllib is None else set(inspect.signature(of_rllib).parameters) - {"self"}
        ours = {option.keyword for option in self.declared_options().values() if option.section == section}
        for name in arguments:
            if name in known:
                continue
            close = difflib.get_close_matches(name, known | ours, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{type(self).__name__}.{section}() has no argument {name!r}.{hint}")

    def _set(self, **values: Any) -> Self:
        for name, value in values.items():
            if value is not NotProvided:
                setattr(self, name, value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy for another process: with what the names of its environments mean in this one."""
        names = (self.env, *(each.get("env") for each in (self.evaluation_config,) if isinstance(each, Mapping)))
        return self.__dict__ | {"_known_environments": {**registered(names), **self._known_environments}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy on its own, but for the data in `env_config`: dicts in it are copied, what they hold is shared.

        A data set would be copied several times while an algorithm is built, and nothing here writes into it.
        """
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        in_evaluation = self.evaluation_config if isinstance(self.evaluation_config, Mapping) else {}
        for given in (self.env_config, in_evaluation.get("env_config")):
            memo |= {id(item): item for item in _held_by(given)}
        # Not by attribute: it may be frozen.
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Sets options by the names of their attributes, as Tune does with a `param_space`.

        Raises:
            ValueError: for a name that is no option; says the nearest.
        """
        # `items`, which RLlib's configs have too; Tune's trials get them as dicts, its resource requests as they are.
        given = dict(config_dict.items())
        for key in given:
            name = self._translate_special_keys(key, warn_deprecated=False)
            if name != "multiagent":
                refuse_unknown_name(type(self), name, partial("update_from_dict({{{!r}: ...}})".format, key))
        return super().update_from_dict(given)


def _held_by(value: Any) -> Iterator[Any]:
    """What a dict, and dicts in it, hold besides dicts."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _held_by(item) if isinstance(item, Mapping) else (item,)
