"""Finding the runs in the folders that a report is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlhf_algos.runs.own_runs import is_run_folder, read_run_folder
from rlhf_algos.runs.run import Run
from rlhf_algos.runs.run_folder import CONFIG, FORMAT, PROGRESS
from rlhf_algos.runs.tune_trials import PARAMS, RESULT, is_trial_folder, read_trial_folder

_EXPECTED = (
    f"a run folder ({PROGRESS} and a {CONFIG} with the format {FORMAT}), a trial of Ray Tune ({RESULT} and {PARAMS}) "
    "or a folder that contains such folders"
)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in all the folders, each once, in the order of the paths and of the folders' names.

    Raises:
        FileNotFoundError: if a path does not exist.
        ValueError: if a path holds no run, or if a file of a run is damaged; names the path.
    """
    if not paths:
        raise ValueError(f"No folder to report on was given; expected {_EXPECTED}.")
    runs: dict[Path, Run] = {}
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; expected {_EXPECTED}.")
        if not path.is_dir():
            raise ValueError(f"{path} is a file; expected {_EXPECTED}.")
        found = list(_run_folders(path))
        if not found:
            content = sorted(entry.name for entry in path.iterdir())
            held = (
                f"it holds {', '.join(content[:5])}{', ...' if len(content) > 5 else ''}" if content else "it is empty"
            )
            raise ValueError(f"{path} holds no run: {held}; expected {_EXPECTED}.")
        for folder in found:
            place = folder.resolve()
            if place not in runs:
                runs[place] = read_run_folder(folder) if is_run_folder(folder) else read_trial_folder(folder)
    if not any(run.rows or run.failed for run in runs.values()):
        places = ", ".join(str(path) for path in paths)
        raise ValueError(f"{places}: none of the {len(runs)} runs has a complete iteration yet; expected at least one.")
    return list(runs.values())


def _run_folders(folder: Path) -> Iterator[Path]:
    if is_run_folder(folder) or is_trial_folder(folder):
        yield folder
        return
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    # A link may lead in a circle.
    for entry in sorted((e for e in entries if e.is_dir() and not e.is_symlink()), key=_by_number):
        yield from _run_folders(entry)


def _by_number(folder: Path) -> list[tuple[int, str]]:
    """Sorts trial-2 before trial-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", folder.name)]
