"""The folder of one run: configuration, progress, shown responses and state, written as the run goes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from rlhf_algos.runs.samples import SAMPLE_KEYS, SAMPLES, sample_fault
from rlhf_algos.runs.values import flatten, plain_config

FORMAT = "rlhf_algos.RunFolder"
FORMAT_VERSION = 1

CONFIG = "config.json"
PROGRESS = "progress.jsonl"
STATUS = "status.json"

#: What `set_status` accepts. A run that was killed by force can't say so and stays "running".
STATES = ("running", "finished", "interrupted", "failed")


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
