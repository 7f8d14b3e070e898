"""Training on saved batches, without any rollout actor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.offline.offline_data import OfflineData

from rlhf_algos.batch import RolloutBatch, SampledWith, read_header
from rlhf_algos.driver.saved_batches import batch_files
from rlhf_algos.driver.source import BatchSource, Rollouts, SplitFacts
from rlhf_algos.models import resolve_model

logger = logging.getLogger(__name__)

#: Settings that decide log p: a batch sampled with others can't be trained on without being asked for.
DECIDING_SETTINGS = ("model", "temperature", "top_p", "top_k")


def require_same_settings(
    saved: SampledWith | None, wanted: SampledWith, *, accepted: Sequence[str], file: Path
) -> None:
    """Raises unless a saved batch was sampled with the settings of this configuration that decide log p.

    What a batch does not say (one made by hand) is trusted, with a warning.

    Args:
        saved: settings of the batch.
        wanted: those of the configuration.
        accepted: names in which they may differ.
        file: of the batch.

    Raises:
        ValueError: names the setting, both values and what to do.
    """
    unknown = [name for name in DECIDING_SETTINGS if getattr(saved, name, None) is None]
    if unknown:
        logger.warning("%s does not say with which %s it was sampled; it is taken as it is.", file, ", ".join(unknown))
    for name in DECIDING_SETTINGS:
        had, has = getattr(saved, name, None), getattr(wanted, name)
        if name in unknown or name in accepted or _same(name, had, has):
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
    """RLlib's offline data for `offline_data(input_=...)`: files of saved batches, one per training step.

    The settings of all batches are compared with the configuration's at once; the batches are read when their turn
    comes (`SavedSource`).

    Attributes:
        files: in the order of training.
        splits: split and rule of the problems in the batches, each pair once; None where a batch does not say.

    Raises:
        ValueError: if a folder holds batches of several runs, or a batch was sampled with other settings.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        # RLlib's own constructor would open the files with Ray Data.
        self.config = config
        read = cache(read_header)
        self.files = batch_files(config.input_, read)
        self.splits: list[SplitFacts] = []
        wanted = SampledWith.from_dict({"model": config.language_model_path, **config.sampling_settings().as_dict()})
        for file in self.files:
            saved = read(file).settings
            require_same_settings(saved, wanted, accepted=config.accept_different, file=file)
            split: SplitFacts = {"split": None, "split_rule": None} if saved is None else saved.split_facts
            if split not in self.splits:
                self.splits.append(split)


class SavedSource(BatchSource):
    """One saved batch per training step; after the last one an error rather than the first one again in silence."""

    def __init__(self, batches: SavedBatches) -> None:
        self._batches, self._position = batches, 0

    def next(self, version: int) -> Rollouts:
        """The next batch, with a warning if it is ahead of the trainer's version.

        Raises:
            StopIteration: after the last one.
            ValueError: if the file is damaged; names it.
        """
        files = self._batches.files
        if self._position == len(files):
            raise StopIteration(f"All {len(files)} saved batches have been trained on.")
        file = files[self._position]
        batch = RolloutBatch.load(file)
        self._position += 1
        newest = int(batch.weight_versions.max(initial=0))
        if newest > version:
            logger.warning(
                "%s was sampled at weight version %d, the trainer has version %d: its tokens come from weights that "
                "this run has not reached, and staleness is negative.",
                file,
                newest,
                version,
            )
        return Rollouts(batch, file=file)

    def splits(self) -> list[SplitFacts]:
        """Of the problems in all batches."""
        return self._batches.splits

    def state(self) -> dict[str, Any]:
        """How many batches were trained on."""
        return {"position": self._position}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on after these."""
        self._position = state["position"]


def warn_of_other_advantages(file: Path, saved: RolloutBatch, trained: RolloutBatch, *, rule: str) -> None:
    """Logs one line if a saved batch brought advantages, and the run's own rule gives others.

    Args:
        file: of the batch.
        saved: as it was read.
        trained: with the advantages of this run.
        rule: the run's, for a reader.
    """
    if saved.advantages is None or trained.advantages is None:
        return
    if not np.allclose(saved.advantages, trained.advantages, rtol=1e-4, atol=1e-5):
        logger.warning(
            "%s holds advantages of another rule; they are not used. This run's own are computed from the rewards "
            "(by %s).",
            file,
            rule,
        )
