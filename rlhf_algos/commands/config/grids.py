"""`{grid: [...]}` in a configuration file: values that a sweep goes through."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_algos.commands.config.config_file import ConfigFile
from rlhf_algos.commands.errors import ConfigError

#: Keys and places in lists that lead to a value.
Path = tuple[str | int, ...]


def is_grid(value: Any) -> bool:
    """Whether a value is written as a grid."""
    return isinstance(value, Mapping) and set(value) == {"grid"}


def find_grids(value: Any, path: Path = ()) -> Iterator[tuple[Path, list[Any]]]:
    """Every grid within a value, with its choices."""
    if is_grid(value):
        yield path, value["grid"]
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from find_grids(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from find_grids(item, (*path, place))


def dotted(path: Path) -> str:
    """A path as `--set` takes it."""
    return ".".join(str(part) for part in path)


def check_grids(sections: Mapping[str, Any], file: ConfigFile) -> dict[Path, list[Any]]:
    """The grids of a configuration.

    Raises:
        ConfigError: if one is no list, is empty, holds another one or names a value twice.
    """
    grids = dict(find_grids(sections))
    for path, choices in grids.items():
        place = file.place(dotted(path))
        if not isinstance(choices, list) or not choices:
            raise ConfigError(
                f"{place}: a grid is a list of at least one value, as in {{grid: [a, b]}}; got {choices!r}."
            )
        if any(True for _ in find_grids(choices)):
            raise ConfigError(f"{place}: a grid can't stand within another grid.")
        repeated = [choice for number, choice in enumerate(choices) if choice in choices[:number]]
        if repeated:
            raise ConfigError(f"{place}: {repeated[0]!r} stands twice, and its trials would be the same.")
    return grids


def replaced(sections: Mapping[str, Any], choices: Mapping[Path, Any]) -> dict[str, Any]:
    """A copy of the sections with other values at the given paths."""
    result = copy.deepcopy(dict(sections))
    for path, value in choices.items():
        place: Any = result
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = copy.deepcopy(value)
    return result


def cells(grids: Mapping[Path, list[Any]]) -> Iterator[dict[Path, Any]]:
    """Every combination of the choices."""
    for choices in itertools.product(*grids.values()):
        yield dict(zip(grids, choices, strict=True))
