"""Batches on disk: the folder that a run writes, and the files that a setting names."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rlhf_algos.batch import BatchHeader, RolloutBatch, read_header

_SUFFIX = ".safetensors"


class BatchFolder:
    """The folder to which one run writes its batches; no file is ever replaced.

    Every batch is written with the run's identity, so that batches of two runs in one folder are noticed.

    Args:
        folder: made with the first batch.
        seed: of the run, for a person to read.

    Raises:
        ValueError: if batches are already there: they are another run's.
    """

    def __init__(self, folder: str | Path, *, seed: int | None) -> None:
        self._folder = Path(folder)
        self._run = {"run": uuid.uuid4().hex[:12], "seed": seed}
        self._steps = 0
        self._refuse_other_runs()

    def save(self, batch: RolloutBatch) -> Path:
        """Writes the batch of the run's next training step (from 1) as `step-000001.safetensors`.

        Raises:
            ValueError: if another run wrote into the folder meanwhile.
        """
        if self._steps == 0:
            self._refuse_other_runs()
        self._steps += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"step-{self._steps:06d}{_SUFFIX}"
        if path.exists():
            raise self._taken(path)
        return batch.save(path, origin={**self._run, "training_step": self._steps})

    def _refuse_other_runs(self) -> None:
        present = sorted(self._folder.glob(f"*{_SUFFIX}"))
        if present:
            raise self._taken(present[0])

    def _taken(self, path: Path) -> ValueError:
        return ValueError(
            f"debugging(save_batches={str(self._folder)!r}): the folder holds batches of {_run_of(read_header(path))} "
            f"({path.name}). Batches of two runs in one folder could no longer be told apart: name a folder for this "
            "run alone, or move the old batches away."
        )


def batch_folder_of(folder: str | None, *, seed: int | None, trial_id: str | None) -> BatchFolder | None:
    """The folder for the batches of a run that starts; None if none are kept.

    Args:
        folder: `debugging(save_batches=...)`.
        seed: of the run.
        trial_id: within a trial of Tune, which gets a folder of its own below; else None.
    """
    if folder is None:
        return None
    return BatchFolder(folder if trial_id is None else folder_of_try(folder, trial_id), seed=seed)


def folder_of_try(folder: str | Path, trial_id: str) -> Path:
    """The folder below `folder` for one try of a trial of Tune: named after the trial, and its try from the second on.

    Trials have one configuration, and so one `save_batches`, and Tune may start a failed one again.
    """
    names = (trial_id if number == 1 else f"{trial_id}-try{number}" for number in itertools.count(1))
    return next(path for name in names if not any((path := Path(folder, name)).glob(f"*{_SUFFIX}")))


def batch_files(
    paths: str | Path | Sequence[str | Path], read: Callable[[Path], BatchHeader] = read_header
) -> list[Path]:
    """The files that paths name: a folder stands for all batches in it, in the order of their names.

    Args:
        paths: of files and folders.
        read: reads a file's header, for who keeps it.

    Raises:
        FileNotFoundError: if a path does not exist, or a folder holds no batch.
        ValueError: if a folder holds batches of several runs. (Named one by one, they can be of any.)
    """
    files: list[Path] = []
    for path, found in _found(paths):
        if path.is_dir():
            _require_one_run(path, found, read)
        files += found
    return files


def require_batch_files(paths: str | Path | Sequence[str | Path]) -> None:
    """Raises FileNotFoundError unless paths name files, or folders with batches; none of them is opened."""
    for _ in _found(paths):
        pass


def _found(paths: str | Path | Sequence[str | Path]) -> Iterator[tuple[Path, list[Path]]]:
    for path in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; give a saved batch or a folder of them.")
        found = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]
        if not found:
            below = sorted({file.parent for file in path.glob(f"*/*{_SUFFIX}")})
            hint = f" There are some in {', '.join(str(folder) for folder in below[:5])}." if below else ""
            raise FileNotFoundError(f"{path} holds no saved batch (*{_SUFFIX}).{hint}")
        yield path, found


def _require_one_run(folder: Path, files: Sequence[Path], read: Callable[[Path], BatchHeader]) -> None:
    first_of_run: dict[str, Path] = {}
    for file in files:
        first_of_run.setdefault(_run_of(read(file)), file)
    if len(first_of_run) > 1:
        runs = ", ".join(f"{file.name} of {run}" for run, file in first_of_run.items())
        raise ValueError(
            f"{folder} holds batches of {len(first_of_run)} runs ({runs}). In the order of their names they would be "
            "trained on as if one run had sampled them: give each run a folder, or name the files one by one."
        )


def _run_of(header: BatchHeader) -> str:
    origin = header.origin
    return "no run" if origin is None else f"run {origin['run']} (seed {origin['seed']})"
