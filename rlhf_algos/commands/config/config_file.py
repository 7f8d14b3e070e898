"""Reading a configuration file, YAML or JSON, and the `--set` options that change it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlhf_algos.commands.errors import ConfigError


@dataclass(frozen=True)
class ConfigFile:
    """The content of a file after `--set`, and where each part of it came from.

    Attributes:
        name: of the file, for messages.
        content: nested plain values.
        overridden: dotted paths that `--set` gave or made.
    """

    name: str
    content: dict[str, Any]
    overridden: tuple[str, ...] = ()

    def place(self, path: str) -> str:
        """Where the value at a dotted path was given, as a message begins: `run.yaml: training.lr`."""
        given = any(path == option or path.startswith(f"{option}.") for option in self.overridden)
        return f"{'--set' if given else self.name}: {path}"


class _Loader(yaml.SafeLoader):
    """YAML whose numbers may have an exponent without a point, and whose keys may not stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key_node.value!r} stands twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a point and a signed exponent in a float, so that 1e-3 would be text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_config_file(path: str | Path, overrides: Sequence[str] = ()) -> ConfigFile:
    """Reads a file that ends in .json as JSON and any other as YAML, and applies the overrides.

    Args:
        path: of the file.
        overrides: `section.key=value`, the value in YAML.

    Raises:
        ConfigError: names the file, the line if one is wrong, or the override.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise ConfigError(f"{path}: {reason}; expected a configuration in YAML or JSON.") from error
    content = _parse_json(text, str(path)) if path.suffix == ".json" else parse_yaml(text, str(path))
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise ConfigError(f"{path}: expected keys such as `algorithm: grpo` at the top level, got {found}.")
    _require_text_keys(content, str(path))
    return override(ConfigFile(str(path), content), overrides)


def override(file: ConfigFile, overrides: Sequence[str]) -> ConfigFile:
    """A copy in which each `section.key=value` is set."""
    content = copy.deepcopy(file.content)
    paths = []
    for option in overrides:
        path, separator, text = option.partition("=")
        path = path.strip()
        if not separator or not path:
            raise ConfigError(
                f"--set {option}: write it as --set section.key=value, for example --set training.lr=1e-3."
            )
        value = parse_yaml(text, f"--set {path}")
        *parents, last = path.split(".")
        place: Any = content
        for depth, key in enumerate(parents):
            above = ".".join(parents[: depth + 1])
            # An empty section of a YAML file is null.
            if place.get(key) is None:
                place[key] = {}
                paths.append(above)
            place = place[key]
            if not isinstance(place, dict):
                raise ConfigError(f"--set {path}: {above} is {place!r} and has no keys in it.")
        place[last] = value
        paths.append(path)
    return ConfigFile(file.name, content, (*file.overridden, *paths))


def parse_yaml(text: str, source: str) -> Any:
    """A YAML text as plain values.

    Raises:
        ConfigError: names the source and the line.
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f", line {mark.line + 1}" if mark and "\n" in text else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {getattr(error, 'problem', None) or error}.") from error


def _parse_json(text: str, source: str) -> Any:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(f"{source}: {repeated[0]!r} stands twice.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}, line {error.lineno}: not valid JSON: {error.msg}.") from error


def _require_text_keys(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"{path}: the key {key!r} is a {type(key).__name__}; put it in quotes.")
            _require_text_keys(item, path)
    elif isinstance(value, list):
        for item in value:
            _require_text_keys(item, path)
