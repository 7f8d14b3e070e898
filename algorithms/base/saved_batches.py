"""Batches on disk: saving those of a run, and training on saved ones without any rollout actor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.rllib.offline.offline_data import OfflineData

from rlhf_algos.batch import RolloutBatch

_SUFFIX = ".safetensors"


def save_batch(batch: RolloutBatch, folder: str | Path, iteration: int) -> Path:
    """Writes the batch of an iteration (from 1) as `iteration-000001.safetensors`; makes the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return batch.save(folder / f"iteration-{iteration:06d}{_SUFFIX}")


def batch_files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that paths name: a folder stands for all batches in it, in the order of their names.

    Raises:
        FileNotFoundError: if a path does not exist, or a folder holds no batch.
    """
    files: list[Path] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; give a saved batch or a folder of them.")
        found = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]
        if not found:
            raise FileNotFoundError(f"{path} holds no saved batch (*{_SUFFIX}).")
        files += found
    return files


class SavedBatches(OfflineData):
    """RLlib's offline data for `offline_data(input_=...)`: one saved batch per iteration.

    Batches are read when their turn comes. After the last one training ends with an error rather than starting over in
    silence.
    """

    def __init__(self, config: Any) -> None:
        # RLlib's own constructor would open the files with Ray Data.
        self.config = config
        self._files = batch_files(config.input_)
        self._next = 0

    def __len__(self) -> int:
        """Batches in all."""
        return len(self._files)

    def next_batch(self) -> RolloutBatch:
        """The next batch.

        Raises:
            StopIteration: after the last one.
            ValueError: if the file is damaged; names it.
        """
        if self._next == len(self._files):
            raise StopIteration(f"All {len(self._files)} saved batches have been trained on.")
        batch = RolloutBatch.load(self._files[self._next])
        self._next += 1
        return batch
