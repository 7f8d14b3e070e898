"""Which runs belong together, what differs between the others, and how a group is called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_algos.runs.run import Run, without_seed
from rlhf_algos.runs.values import without_address

NOT_SET = "(not set)"
# What a comparison is most likely about is named first.
_NAMED_FIRST = ("algorithm", "env", "corrector", "router_replay", "score_centering", "lr")
_MOST_OPTIONS_IN_A_NAME = 4
_LONGEST_VALUE_IN_A_NAME = 40


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed.

    Attributes:
        name: what sets it apart from the other groups, such as "corrector=tis, router_replay=r3".
        runs: all of them, failed ones too.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def compared(self) -> tuple[Run, ...]:
        """The runs that means and intervals are over: those with results that did not fail."""
        return tuple(run for run in self.runs if run.rows and not run.failed)

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The configuration that its runs share, without the seed."""
        config = self.runs[0].config
        return None if config is None else without_seed(config)

    @property
    def seeds(self) -> str:
        """The seeds of its runs as text."""
        return ", ".join("none" if run.seed is None else str(run.seed) for run in self.runs)


@dataclass(frozen=True)
class Difference:
    """An option that is not the same in all groups: its path in the configuration, and its value in each group."""

    option: str
    values: tuple[str, ...]


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[Difference]]:
    """Groups in the order of their first runs, and the options in which they differ, the seed apart.

    Groups without a configuration can't be compared and have the value "(not set)" everywhere.
    """
    members: dict[str, list[Run]] = {}
    for run in runs:
        key = str(run.path) if run.config is None else _canonical(without_seed(run.config))
        members.setdefault(key, []).append(run)
    firsts = [group[0] for group in members.values()]
    known = [without_seed(run.config) for run in firsts if run.config is not None]
    found: dict[tuple[str, ...], list[Any]] = {}
    _collect(known, (), found)
    paths = sorted(found, key=lambda path: (_rank(path), path))
    names = iter(_names({path: found[path] for path in paths}, known))
    named = [
        Group(run.path.name if run.config is None else next(names), tuple(group))
        for run, group in zip(firsts, members.values(), strict=True)
    ]
    differences = []
    for path in paths:
        values = iter(found[path])
        shown = tuple(NOT_SET if run.config is None else value_text(next(values)) for run in firsts)
        differences.append(Difference("/".join(path), shown))
    return named, differences


def value_text(value: Any) -> str:
    """An option's value as one reads it: text without quotes, everything else as JSON."""
    if value is _MISSING:
        return NOT_SET
    if isinstance(value, str):
        return without_address(value) or '""'
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


class _Missing:
    """The value of an option that a configuration does not have."""


_MISSING = _Missing()


def _collect(values: list[Any], path: tuple[str, ...], found: dict[tuple[str, ...], list[Any]]) -> None:
    # A mapping beside a plain value, such as corrector={"type": "tis"} beside "none", is one option: going into it
    # would name the group by options that the other does not have.
    if values and all(isinstance(value, Mapping) for value in values):
        for key in dict.fromkeys(key for value in values for key in value):
            _collect([value.get(key, _MISSING) for value in values], (*path, key), found)
    elif len({_canonical(value) for value in values}) > 1:
        found[path] = values


def _canonical(value: Any) -> str:
    """The same text for equal values: 1 and 1.0, any order of keys, any place in memory."""
    if value is _MISSING:
        return NOT_SET

    def plain(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {str(key): plain(inner) for key, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        if isinstance(item, str):
            return without_address(item)
        return float(item) if isinstance(item, int) and not isinstance(item, bool) else item

    return json.dumps(plain(value), sort_keys=True)


def _rank(path: tuple[str, ...]) -> int:
    return _NAMED_FIRST.index(path[-1]) if path[-1] in _NAMED_FIRST else len(_NAMED_FIRST)


def _names(found: Mapping[tuple[str, ...], list[Any]], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each configuration."""
    if not found:
        return [str(config.get("algorithm", "all runs")) for config in configs]
    paths = list(found)
    if len(paths) > _MOST_OPTIONS_IN_A_NAME:
        paths = _enough_to_tell_apart(found, len(configs))
    last = [path[-1] for path in found]
    labels = {path: path[-1] if last.count(path[-1]) == 1 else "/".join(path) for path in paths}

    def name(place: int, longest: int | None) -> str:
        values = {path: found[path][place] for path in paths}
        texts = {path: value_text(value) for path, value in values.items() if value is not _MISSING}
        if longest is not None:
            texts = {p: text if len(text) <= longest else text[: longest - 1] + "…" for p, text in texts.items()}
        more = ", …" if len(paths) < len(found) else ""
        return ", ".join(f"{labels[path]}={text}" for path, text in texts.items()) + more or "defaults"

    names = [name(place, _LONGEST_VALUE_IN_A_NAME) for place in range(len(configs))]
    return names if len(set(names)) == len(names) else [name(place, None) for place in range(len(configs))]


def _enough_to_tell_apart(found: Mapping[tuple[str, ...], list[Any]], count: int) -> list[tuple[str, ...]]:
    chosen: list[tuple[str, ...]] = []
    told_apart = 1
    keys = [""] * count
    for path, values in found.items():
        longer = [key + "\n" + _canonical(value) for key, value in zip(keys, values, strict=True)]
        if len(set(longer)) > told_apart:
            chosen, keys, told_apart = [*chosen, path], longer, len(set(longer))
    return chosen
