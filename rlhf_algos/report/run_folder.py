"""The folder of one run: configuration, progress, shown responses and state, written as the run goes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

FORMAT = "rlhf_algos.RunFolder"
FORMAT_VERSION = 1

CONFIG = "config.json"
PROGRESS = "progress.jsonl"
SAMPLES = "samples.jsonl"
STATUS = "status.json"

#: What `set_status` accepts. A run that was killed by force can't say so and stays "running".
STATES = ("running", "finished", "interrupted", "failed")
SAMPLE_KEYS = ("prompt", "reward", "tokens", "rollout_logprobs", "old_logprobs")


class RunFolder:
    """A new folder under `parent`, named after the run and the time.

    Args:
        parent: where run folders are kept; made if it does not exist.
        name: what was run.
    """

    def __init__(self, parent: str | Path, name: str) -> None:
        stem = f"{name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
        parent = Path(parent).absolute()
        parent.mkdir(parents=True, exist_ok=True)
        # Two runs may start within one second; mkdir decides who has the name.
        for number in count(1):
            self.path = parent / (stem if number == 1 else f"{stem}-{number}")
            try:
                self.path.mkdir()
            except FileExistsError:
                continue
            break

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Writes the exact configuration, nested or flat; what JSON has no form for is written as text.

        Args:
            config: every option and its value. Should hold "algorithm", the algorithm's name, and "seed".

        Raises:
            ValueError: if an option is called "format" or "format_version", the names of the folder's own entries.
        """
        taken = {"format", "format_version"} & set(config)
        if taken:
            raise ValueError(f"The configuration must not have the options {sorted(taken)}: {CONFIG} uses these names.")
        _write_whole(
            self.path / CONFIG, {"format": FORMAT, "format_version": FORMAT_VERSION} | plain_config(dict(config))
        )

    def append(self, iteration: int, result: Mapping[str, Any]) -> dict[str, float]:
        """Adds one row with the finite numbers of a (nested) result; returns the row."""
        row = {"iteration": float(iteration)} | flatten(result)
        _append_lines(self.path / PROGRESS, [row])
        return row

    def append_samples(self, iteration: int, samples: Iterable[Mapping[str, Any]]) -> None:
        """Adds responses to be shown in a report.

        Args:
            iteration: that sampled them.
            samples: of each response `prompt` (str), `reward` (float), and per token `tokens` (str),
                `rollout_logprobs` (log q) and `old_logprobs` (log p0), three sequences of one length.

        Raises:
            ValueError: if a key is missing, the sequences differ in length or a number is not finite.
        """
        lines = []
        for place, sample in enumerate(samples):
            line = {"iteration": int(iteration)} | {key: sample[key] for key in SAMPLE_KEYS if key in sample}
            line = {key: _listed(value) for key, value in line.items()}
            fault = sample_fault(line)
            if fault:
                raise ValueError(f"append_samples, sample {place}: {fault}.")
            lines.append(line)
        _append_lines(self.path / SAMPLES, lines)

    def set_status(self, state: str, error: str | None = None) -> None:
        """Records how the run stands; the last call counts.

        Raises:
            ValueError: if the state is none of `STATES`, or if an error is given without the state "failed".
        """
        if state not in STATES:
            raise ValueError(f"set_status({state!r}): use one of {', '.join(STATES)}.")
        if error is not None and state != "failed":
            raise ValueError(f"set_status({state!r}, error=...): an error belongs to the state 'failed'.")
        _write_whole(self.path / STATUS, {"state": state, "error": error})


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


def plain_config(value: Any) -> Any:
    """A configuration in JSON's types: tuples and sets as lists, classes and functions by name, others as text."""
    if isinstance(value, Mapping):
        return {str(key): plain_config(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_config(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain_config(item) for item in value), key=str)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain_config(value.item())
    return without_address(str(value))


def without_address(text: str) -> str:
    """Python's text of an object without its place in memory, which is different in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def sample_fault(line: Mapping[str, Any]) -> str | None:
    """What is wrong with one shown response, or None."""
    missing = [key for key in ("iteration", *SAMPLE_KEYS) if key not in line]
    if missing:
        return f"{', '.join(missing)} missing"
    if not isinstance(line["prompt"], str):
        return "prompt is not text"
    if not _are_numbers([line["iteration"], line["reward"]]):
        return "iteration and reward must be finite numbers"
    tokens, logprobs = line["tokens"], {key: line[key] for key in ("rollout_logprobs", "old_logprobs")}
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return "tokens is not a list of text"
    for key, values in logprobs.items():
        if not isinstance(values, list) or not _are_numbers(values):
            return f"{key} is not a list of finite numbers"
        if len(values) != len(tokens):
            return f"{len(tokens)} tokens, but {len(values)} {key}"
    return None


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


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)


def _listed(value: Any) -> Any:
    """Arrays and tuples as lists of Python's own numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _append_lines(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    # One write, so that a run that is killed leaves at most its last line incomplete.
    with file.open("a", encoding="utf-8") as opened:
        opened.write("".join(json.dumps(line) + "\n" for line in lines))


def _write_whole(file: Path, content: Mapping[str, Any]) -> None:
    # A reader sees the old file or the new one, never half of it.
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(file)
