"""The folder of one run: its progress as JSON lines, written as it goes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

PROGRESS = "progress.jsonl"


class RunFolder:
    """A new folder under `parent`, named after the run and the time.

    Args:
        parent: where run folders are kept; made if it does not exist.
        name: what was run.
    """

    def __init__(self, parent: str | Path, name: str) -> None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        self.path = Path(parent).absolute() / f"{name}-{stamp}"
        self.path.mkdir(parents=True)

    def append(self, iteration: int, result: Mapping[str, Any]) -> dict[str, float]:
        """Adds one row with the finite numbers of a (nested) result; returns the row."""
        row = {"iteration": float(iteration)} | flatten(result)
        with (self.path / PROGRESS).open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row


def flatten(result: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a nested mapping under keys joined with "/"; what is no finite number is left out."""
    flat: dict[str, float] = {}
    for key, value in result.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            flat |= flatten(value, name)
        elif not isinstance(value, bool | str):
            try:
                number = float(value)
            except (TypeError, ValueError):
                continue
            if math.isfinite(number):
                flat[name] = number
    return flat


def read_progress(path: str | Path) -> list[dict[str, float]]:
    """Rows of a run folder, in the order of iterations.

    Raises:
        FileNotFoundError: if the folder holds no progress file.
        ValueError: if a line is not JSON; names the file and the line.
    """
    file = Path(path) / PROGRESS
    if not file.exists():
        raise FileNotFoundError(f"{path} is not a run folder: it has no {PROGRESS}.")
    rows = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}, line {number} is not JSON (was the run cut off?): {error}") from error
    return rows
