"""Batches on disk: saving those of a run, and training on saved ones without any rollout actor."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.offline.offline_data import OfflineData

from rlhf_algos.batch import BatchHeader, RolloutBatch, SampledWith, read_header
from rlhf_algos.models import resolve_model

logger = logging.getLogger(__name__)

_SUFFIX = ".safetensors"

#: Settings that decide log p: a batch sampled with others can't be trained on without being asked for.
DECIDING_SETTINGS = ("model", "temperature", "top_p", "top_k")


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


def require_same_settings(
    saved: SampledWith | None, wanted: SampledWith, *, accepted: Sequence[str], file: Path
) -> None:
    """Raises unless a saved batch was sampled with the settings of this configuration that decide log p.

    A batch that does not say (made by hand) is trusted, with a warning.

    Args:
        saved: settings of the batch.
        wanted: those of the configuration.
        accepted: names in which they may differ.
        file: of the batch.

    Raises:
        ValueError: names the setting, both values and what to do.
    """
    if saved is None:
        names = ", ".join(DECIDING_SETTINGS)
        logger.warning("%s does not say with which %s it was sampled; it is taken as it is.", file, names)
        return
    for name in DECIDING_SETTINGS:
        had, has = getattr(saved, name), getattr(wanted, name)
        if name in accepted or _same(name, had, has):
            continue
        method = "language_model(path)" if name == "model" else f"sampling({name}=...)"
        raise ValueError(
            f"{file} was sampled with {name}={had!r}, and this configuration has {name}={has!r}: "
            "every ratio between trainer and sampler would be between two different distributions. Set "
            f"{method} to the batch's value, or accept the difference with "
            f"offline_data(accept_different=[{name!r}])."
        )


def _same(name: str, saved: Any, wanted: Any) -> bool:
    if name != "model":
        return bool(saved == wanted)
    if saved == wanted:
        return True
    first, second = (Path(resolve_model(str(model))) for model in (saved, wanted))
    return first.is_dir() and second.is_dir() and first.samefile(second)


class SavedBatches(OfflineData):
    """RLlib's offline data for `offline_data(input_=...)`: one saved batch per training step.

    The settings of all batches are compared with the configuration's at once; the batches are read when their turn
    comes. After the last one training ends with an error rather than starting over in silence.

    Raises:
        ValueError: if a folder holds batches of several runs, or a batch was sampled with other settings.
    """

    def __init__(self, config: Any) -> None:
        # RLlib's own constructor would open the files with Ray Data.
        self.config = config
        read = cache(read_header)
        self._files = batch_files(config.input_, read)
        self._next = 0
        self._splits: list[dict[str, str | None]] = []
        wanted = SampledWith.from_dict({"model": config.language_model_path, **config.sampling_settings().as_dict()})
        for file in self._files:
            saved = read(file).settings
            require_same_settings(saved, wanted, accepted=config.accept_different, file=file)
            split: dict[str, str | None] = {"split": None, "split_rule": None} if saved is None else saved.split_facts
            if split not in self._splits:
                self._splits.append(split)

    def splits(self) -> list[dict[str, str | None]]:
        """Split and rule of the problems in the batches, each pair once; None where a batch does not say."""
        return self._splits

    def __len__(self) -> int:
        """Batches in all."""
        return len(self._files)

    def next_batch(self, *, weight_version: int) -> RolloutBatch:
        """The next batch.

        Args:
            weight_version: the trainer's; a batch that is ahead of it gets a warning.

        Raises:
            StopIteration: after the last one.
            ValueError: if the file is damaged; names it.
        """
        if self._next == len(self._files):
            raise StopIteration(f"All {len(self._files)} saved batches have been trained on.")
        file = self._files[self._next]
        batch = RolloutBatch.load(file)
        self._next += 1
        newest = int(batch.weight_versions.max(initial=0))
        if newest > weight_version:
            logger.warning(
                "%s was sampled at weight version %d, the trainer has version %d: its tokens come from weights that "
                "this run has not reached, and staleness is negative.",
                file,
                newest,
                weight_version,
            )
        return batch

    def note_recomputed(self, saved: RolloutBatch, trained: RolloutBatch) -> None:
        """Logs one line if the batch that `next_batch` gave brought advantages, and the run's own rule gives others.

        Args:
            saved: as it was read.
            trained: with the advantages of this run.
        """
        if saved.advantages is None or trained.advantages is None:
            return
        if not np.allclose(saved.advantages, trained.advantages, rtol=1e-4, atol=1e-5):
            logger.warning(
                "%s holds advantages of another rule; they are not used. This run's own are computed from the rewards "
                "(training(normalize_std=%s)).",
                self._files[self._next - 1],
                self.config.normalize_std,
            )
