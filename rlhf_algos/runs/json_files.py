"""Reading JSON and JSON-lines files that may be cut off, with errors that name the file and the line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JsonLines:
    """The objects of a JSON-lines file.

    Attributes:
        objects: of each complete line its number, counted from 1, and the object.
        cut: whether the last line is incomplete, as a killed process leaves it.
    """

    objects: list[tuple[int, dict[str, Any]]]
    cut: bool

    def cut_note(self, file: Path, noun: str) -> list[str]:
        """What the report's reader has to know of a cut file; nothing if it is whole."""
        if not self.cut:
            return []
        return [
            f"{file}: the last line is cut off and left out; complete before it: {counted(len(self.objects), noun)}."
        ]


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def read_json_lines(file: Path) -> JsonLines:
    """All complete lines; an incomplete last one is left out and reported as `cut`.

    Raises:
        ValueError: if a line that others follow is no JSON object; names the file and the line.
    """
    lines = file.read_bytes().split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    objects: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError(f"expected an object in braces, got {type(value).__name__}")
        except ValueError as error:
            if number == len(lines):
                return JsonLines(objects, cut=True)
            raise ValueError(
                f"{file}, line {number} of {len(lines)} is damaged ({error}). Only the last line of a run that was "
                "killed may be incomplete; remove the line to report on the others."
            ) from error
        objects.append((number, value))
    return JsonLines(objects, cut=False)


def read_json_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: if the file is no JSON or no object; names the file.
    """
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); expected one object in braces. Was it cut off?") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file} holds a {type(value).__name__}; expected one object in braces.")
    return value
