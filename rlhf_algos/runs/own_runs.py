"""Reading the folders that `RunFolder` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_algos.runs.json_files import counted, read_json_lines, read_json_object
from rlhf_algos.runs.run import Run
from rlhf_algos.runs.run_folder import CONFIG, FORMAT, FORMAT_VERSION, PROGRESS, STATES, STATUS
from rlhf_algos.runs.samples import read_samples


def is_run_folder(folder: Path) -> bool:
    """Whether the folder is meant to be one of ours; a damaged one is, and reading it tells what is wrong."""
    return (folder / PROGRESS).is_file() or (folder / STATUS).is_file() or _has_our_config(folder / CONFIG)


def read_run_folder(folder: Path) -> Run:
    """The run in one of our folders.

    Raises:
        ValueError: if a file in it is damaged, of a later version or not ours; names the file.
    """
    notes: list[str] = []
    config = _read_config(folder / CONFIG)
    if config is None:
        notes.append(f"{folder} has no {CONFIG}: its options are unknown, and it is not grouped with other runs.")
    rows, row_notes = _read_rows(folder / PROGRESS)
    state, error = _read_status(folder / STATUS)
    samples, sample_notes = read_samples(folder)
    return Run(folder, config, rows, state, error, samples, (*notes, *row_notes, *sample_notes))


def _has_our_config(file: Path) -> bool:
    # Models have a config.json too.
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def _read_config(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    config = read_json_object(file)
    found, version = config.pop("format", None), config.pop("format_version", None)
    if found != FORMAT:
        raise ValueError(
            f'{file} is not the configuration of a run folder: expected "format": "{FORMAT}", got {found!r}.'
        )
    if not isinstance(version, int) or version < 1:
        raise ValueError(f'{file}: "format_version" must be a whole number from 1 on, got {version!r}.')
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{file} was written by a later version of rlhf-algos: its format_version is {version}, this one reads up "
            f"to {FORMAT_VERSION}. Update rlhf-algos to report on it."
        )
    return config


def _read_rows(file: Path) -> tuple[dict[int, Mapping[str, float]], list[str]]:
    if not file.exists():
        return {}, []
    lines = read_json_lines(file)
    rows: dict[int, Mapping[str, float]] = {}
    repeated = 0
    for number, row in lines.objects:
        wrong = [key for key, value in row.items() if not isinstance(value, int | float) or isinstance(value, bool)]
        if wrong or "iteration" not in row:
            fault = f"{wrong[0]!r} is no number" if wrong else '"iteration" is missing'
            raise ValueError(f'{file}, line {number}: {fault}; expected names of metrics with numbers and "iteration".')
        iteration = int(row["iteration"])
        repeated += iteration in rows
        rows[iteration] = row
    return rows, lines.cut_note(file, "iteration") + repeated_note(file, repeated)


def _read_status(file: Path) -> tuple[str, str | None]:
    if not file.exists():
        return "unknown", None
    status = read_json_object(file)
    state, error = status.get("state"), status.get("error")
    if state not in STATES or not (error is None or isinstance(error, str)):
        raise ValueError(
            f'{file}: expected "state" (one of {", ".join(STATES)}) and "error" (text or null), got {status!r}.'
        )
    return state, error


def repeated_note(file: Path, repeated: int) -> list[str]:
    """A note for iterations that were recorded more than once."""
    if not repeated:
        return []
    return [f"{file}: recorded again after a resume: {counted(repeated, 'iteration')}; the later record is used."]
