"""From a configuration file to an algorithm's config, and back to what config.json records."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium

from rlhf_algos.algorithms import ALGORITHMS
from rlhf_algos.commands.config.config_file import ConfigFile, read_config_file
from rlhf_algos.commands.config.grids import dotted, find_grids
from rlhf_algos.commands.config.sections import SECTIONS, apply_sections, recorded_section, require_known
from rlhf_algos.commands.config.value_types import described, fits
from rlhf_algos.commands.errors import ConfigError, message_of

_TOP_LEVEL: dict[str, Any] = {"algorithm": str, "name": str, "iterations": int, "evaluate_every": int}
# Entries with which a run folder's config.json says what it is.
_MARKS = ("format", "format_version")


@dataclass(frozen=True)
class RunConfig:
    """A configuration file, its top level checked.

    Attributes:
        algorithm: a name of `ALGORITHMS` or a dotted path.
        name: of the run folder.
        iterations: length of the run.
        evaluate_every: iterations between evaluations; 0 evaluates never.
        sections: arguments of the config's methods, by method.
        file: where they came from.
    """

    algorithm: str
    name: str
    iterations: int
    evaluate_every: int
    sections: Mapping[str, Any]
    file: ConfigFile

    def algorithm_class(self) -> type[Any]:
        """The RLlib algorithm.

        Raises:
            ConfigError: if there is none of that name.
        """
        return _import_algorithm(self)[0]

    def new_config(self) -> Any:
        """The algorithm's config with this file's sections, not validated: Tune's search values may stand in it."""
        algorithm, config = _import_algorithm(self)
        config.algo_class = algorithm
        apply_sections(config, self.sections, self.file)
        return config

    def build(self) -> Any:
        """The validated config.

        Raises:
            ConfigError: says what is wrong with which option.
        """
        config = self.new_config()
        try:
            config.validate()
        except (ValueError, TypeError, ImportError, OSError, gymnasium.error.Error) as error:
            # What was wrong is in the text; the kind of a ValueError adds nothing to it.
            message = message_of(error).removeprefix("ValueError: ")
            raise ConfigError(f"{self.file.name}: {message}") from error
        return config

    def recorded(self, config: Any) -> dict[str, Any]:
        """What was run, in the form of a configuration file: every option of ours, and what was set of RLlib's."""
        sections = {name: recorded_section(config, name, self.sections.get(name) or {}) for name in SECTIONS}
        return self.top_level() | {name: keys for name, keys in sections.items() if keys}

    def top_level(self) -> dict[str, Any]:
        """The entries above the sections."""
        return {name: getattr(self, name) for name in _TOP_LEVEL}


def read_run_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    iterations: int | None = None,
    further: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Reads and checks everything but the values inside the sections, without importing an engine.

    Args:
        path: of the file.
        overrides: of `--set`.
        iterations: takes the place of the file's.
        further: top-level keys that the caller reads itself, with their types.

    Raises:
        ConfigError: names the file and the key.
    """
    file = read_config_file(path, overrides)
    content = {key: value for key, value in file.content.items() if key not in _MARKS}
    if iterations is not None:
        content["iterations"] = iterations
        file = replace(file, content=content, overridden=(*file.overridden, "iterations"))
    types = _TOP_LEVEL | dict(further or {})
    for key, value in content.items():
        if key in ("seeds", "sweep") and key not in types:
            raise ConfigError(f"{file.place(key)} belongs to `rlhf-algos sweep`; `rlhf-algos train` makes one run.")
        require_known("", key, [*types, *SECTIONS], file)
        if key in types and not fits(value, types[key]):
            raise ConfigError(f"{file.place(key)} must be {described(types[key])}, got {value!r}.")
    for key in ("algorithm", "iterations"):
        if key not in content:
            raise ConfigError(
                f"{file.name}: {key} is missing; for example `{key}: {'grpo' if key == 'algorithm' else 40}`."
            )
    values: dict[str, Any] = {"name": Path(path).stem, "evaluate_every": 10} | {
        key: content[key] for key in _TOP_LEVEL if key in content
    }
    _check_top_level(values, file)
    sections = {section: content[section] for section in SECTIONS if content.get(section) is not None}
    return RunConfig(**values, sections=sections, file=file)


def require_no_grids(run: RunConfig) -> None:
    """Raises ConfigError if a value is a grid."""
    for path, _ in find_grids(run.sections):
        raise ConfigError(
            f"{run.file.place(dotted(path))} is a grid; only `rlhf-algos sweep` goes through several values."
        )


def _check_top_level(values: Mapping[str, Any], file: ConfigFile) -> None:
    if values["iterations"] < 1:
        raise ConfigError(f"{file.place('iterations')} must be at least 1, got {values['iterations']}.")
    if values["evaluate_every"] < 0:
        raise ConfigError(f"{file.place('evaluate_every')} must be at least 0, got {values['evaluate_every']}.")
    if not re.fullmatch(r"[\w.+=-]+", values["name"]) or values["name"].startswith("."):
        raise ConfigError(
            f"{file.place('name')} names a folder: use letters, digits and any of _.+=- in {values['name']!r}."
        )


def _import_algorithm(run: RunConfig) -> tuple[type[Any], Any]:
    """The algorithm's class and a default config."""
    from rlhf_algos.algorithms.interface import LanguageModelAlgorithm, LanguageModelAlgorithmConfig

    place = run.file.place("algorithm")
    module_name, _, name = ALGORITHMS.get(run.algorithm, run.algorithm).rpartition(".")
    if not module_name:
        close = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = (
            f"Did you mean {close[0]}?" if close else f"There are {', '.join(ALGORITHMS)}, and dotted paths of classes."
        )
        raise ConfigError(f"{place}: no algorithm is called {name!r}. {hint}")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{place}: {run.algorithm} can't be imported ({error}). Give one of {', '.join(ALGORITHMS)} or the dotted "
            "path of a class that Python finds (install its package, or set PYTHONPATH)."
        ) from error
    if inspect.isclass(found) and issubclass(found, LanguageModelAlgorithm):
        return found, found.get_default_config()
    if inspect.isclass(found) and issubclass(found, LanguageModelAlgorithmConfig):
        config = found()
        return config.algo_class, config
    raise ConfigError(f"{place}: {run.algorithm} is neither a LanguageModelAlgorithm nor a config of one.")
