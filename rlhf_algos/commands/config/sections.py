"""The sections of a configuration file: each is a method of the algorithm's config, its keys the method's arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_algos.algorithms.declarations import OPTIONS
from rlhf_algos.algorithms.options import Option
from rlhf_algos.commands.config.config_file import ConfigFile
from rlhf_algos.commands.config.value_types import described, fits
from rlhf_algos.commands.errors import ConfigError
from rlhf_algos.engine_arguments import vllm_engine_arguments

#: Methods of an algorithm's config that a file may use, in the order they are called.
SECTIONS = tuple(dict.fromkeys(option.section for option in OPTIONS if option.in_files))


@dataclass(frozen=True)
class Argument:
    """An argument of a section's method.

    Attributes:
        annotation: `Any` where there is none that can be read.
        of_rllib: whether RLlib has it, and no class of this library or of a user.
    """

    annotation: Any
    of_rllib: bool

    def fits(self, value: Any) -> bool:
        """Whether a value is what the annotation says; RLlib's whole numbers of CPUs and GPUs may be fractions."""
        if fits(value, self.annotation):
            return True
        is_fraction = isinstance(value, float) and not value.is_integer()
        return self.of_rllib and is_fraction and fits(int(value), self.annotation)


def arguments_of(config: Any, section: str) -> dict[str, Argument]:
    """Keyword arguments of a method by name, those that a subclass hands on to its base class included."""
    found: dict[str, Argument] = {}
    for cls in type(config).__mro__:
        method = vars(cls).get(section)
        if method is None:
            continue
        parameters = inspect.signature(method).parameters.values()
        for parameter in parameters:
            # Other defaults are those of RLlib's deprecated arguments.
            if getattr(parameter.default, "__name__", type(parameter.default).__name__) == "_NotProvided":
                argument = Argument(_annotation(parameter, method), cls.__module__.startswith("ray."))
                found.setdefault(parameter.name, argument)
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def declared_in(config: Any, section: str) -> dict[str, Option]:
    """The declared options of a section by argument."""
    return {option.keyword: option for option in config.declared_options().values() if option.section == section}


def names_of(config: Any, section: str) -> list[str]:
    """What may stand in a section; empty where that can't be known."""
    return vllm_engine_arguments() if section == "vllm" else list(arguments_of(config, section))


def recorded_section(config: Any, section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A section as config.json has it: every option that is always recorded, and what else was given.

    Args:
        config: of the run.
        section: one of `SECTIONS`.
        given: what the file has in it.

    Raises:
        ConfigError: if a method of our own has an argument that is not declared, and its value can't be found again.
    """
    if section == "vllm":
        return dict(config.vllm_args)
    options = declared_in(config, section)
    recorded = {key: getattr(config, option.name) for key, option in options.items() if option.recorded}
    for name, argument in arguments_of(config, section).items():
        if argument.of_rllib or name in options or name in given:
            continue
        if not hasattr(config, name):
            raise ConfigError(
                f"{type(config).__name__}.{section}({name}=...): its value can't be recorded. Declare it in OPTIONS of "
                f'the class: Option("{section}", ATTRIBUTE, ..., argument="{name}").'
            )
        recorded[name] = getattr(config, name)
    return recorded | {key: value for key, value in given.items() if key not in recorded}


def apply_sections(config: Any, sections: Mapping[str, Any], file: ConfigFile) -> None:
    """Calls the config's method for every section.

    Raises:
        ConfigError: if a key is unknown, a value has the wrong type or the method refuses it; names file and path.
    """
    for section in SECTIONS:
        keys = sections.get(section)
        if keys is None:
            continue
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{file.place(section)} must have keys, such as `key: value`; got {keys!r}.")
        _check_keys(config, section, keys, file)
        call_sections(config, {section: keys}, file)
    evaluation = (sections.get("evaluation") or {}).get("evaluation_config") or {}
    for key in evaluation:
        # RLlib would set any name, and nothing would read it.
        require_known("evaluation.evaluation_config", key, [k for k in vars(config) if not k.startswith("_")], file)


def call_sections(config: Any, sections: Mapping[str, Any], file: ConfigFile) -> None:
    """`apply_sections` without the check of names and types, for values that Tune is to replace."""
    for section in SECTIONS:
        if section not in sections:
            continue
        try:
            getattr(config, section)(**sections[section])
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{file.place(section)}: {error}") from error


def require_known(path: str, key: str, known: Iterable[str], file: ConfigFile) -> None:
    """Raises ConfigError with the nearest valid name if a key is not among the known ones."""
    names = list(known)
    if key in names:
        return
    within = f"{path}.{key}" if path else key
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if close:
        hint = f"Did you mean {f'{path}.{close[0]}' if path else close[0]}?"
    else:
        hint = f"There {'are' if len(names) < 20 else 'are, among others,'} {', '.join(names[:20])}."
    raise ConfigError(f"{file.place(within)} is no known {'key' if path else 'section or key'}. {hint}")


def _check_keys(config: Any, section: str, keys: Mapping[str, Any], file: ConfigFile) -> None:
    names, declared = names_of(config, section), declared_in(config, section)
    arguments = arguments_of(config, section)
    for key, value in keys.items():
        if names and key not in names:
            _raise_what_the_method_says(getattr(config.copy(copy_frozen=False), section), section, key, value, file)
            require_known(section, key, names, file)
        argument = Argument(declared[key].kind.annotation, False) if key in declared else arguments.get(key)
        if argument is not None and not argument.fits(value):
            raise ConfigError(
                f"{file.place(f'{section}.{key}')} must be {described(argument.annotation)}, got {value!r} "
                f"({type(value).__name__})."
            )
        if key not in declared:
            continue
        try:
            declared[key].checked(value)
        except ValueError as error:
            raise ConfigError(f"{file.place(f'{section}.{key}')}: {error}") from error


def _raise_what_the_method_says(
    method: Callable[..., Any], section: str, key: str, value: Any, file: ConfigFile
) -> None:
    """Some names are refused with a reason, which says more than the nearest name."""
    try:
        method(**{key: value})
    except TypeError:
        return
    except ValueError as error:
        raise ConfigError(f"{file.place(f'{section}.{key}')}: {error}") from error


def _annotation(parameter: inspect.Parameter, method: Callable[..., Any]) -> Any:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(inspect.getmodule(method)))
    except NameError:
        # Named only for type checkers.
        return Any
