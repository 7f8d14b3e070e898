"""No checkpoints yet: saving and restoring a run are refused, where RLlib's own would lose most of it in silence.

RLlib would keep one rank's shard of the optimizer's state, and neither the version of the weights nor the position in
the data; and restored parameters would be overwritten by ZeRO's own copies in the next step.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pyarrow.fs
from ray.rllib.algorithms.algorithm import Algorithm
from ray.train._internal.session import _TrainingResult

logger = logging.getLogger(__name__)

#: Says in a trial's folder that Tune asked for a checkpoint and got none; of which trial, too.
NOTE = "no_checkpoint.txt"


class CheckpointsNotSupported(NotImplementedError):
    """A run can't be saved or restored."""


class WithoutCheckpoints(Algorithm):
    """An `Algorithm` whose saving and restoring methods raise `CheckpointsNotSupported` and touch nothing.

    Under Tune, the save at the end of a trial, which is Tune's default, writes no checkpoint and logs that. A trial
    that is to go on after a save (`CheckpointConfig(checkpoint_frequency=...)`, a scheduler that pauses or copies
    trials) fails by name: it would start over with untrained weights.
    """

    # Tune then refuses `CheckpointConfig(checkpoint_frequency=...)` before it starts anything.
    _handles_checkpoint_freq: ClassVar[bool] = False

    def save(self, checkpoint_dir: str | None = None) -> _TrainingResult:
        """Refused; within a Tune trial nothing is written but a note, and Tune takes it that there is no checkpoint."""
        if self._storage is None:
            _refuse(f"{type(self).__name__}.save")
        files, path = self._note()
        files.create_dir(str(Path(path).parent))
        text = f"{self.trial_id}\nNo checkpoint was written after iteration {self.iteration}: {_REASON}\n"
        with files.open_output_stream(path) as stream:
            stream.write(text.encode())
        logger.warning("Tune asked for a checkpoint after iteration %d; none is written. %s", self.iteration, _REASON)
        return _TrainingResult(checkpoint=None, metrics=dict(self._last_result or {}))

    def train(self) -> Any:
        """One iteration, as RLlib's.

        Raises:
            CheckpointsNotSupported: if this Tune trial was to be saved before and is to go on now.
        """
        if self._storage is not None:
            files, path = self._note()
            if files.get_file_info(path).type == pyarrow.fs.FileType.File:
                with files.open_input_stream(path) as stream:
                    of_trial = stream.read().decode().splitlines()[0]
                if of_trial == self.trial_id:
                    raise CheckpointsNotSupported(
                        f"Trial {self.trial_id} is to go on after a checkpoint, and there is none: {_REASON} Leave "
                        "CheckpointConfig(checkpoint_frequency=...) out, and use a scheduler that does not pause or "
                        "copy trials."
                    )
        return super().train()

    def _note(self) -> tuple[pyarrow.fs.FileSystem, str]:
        assert self._storage is not None
        return self._storage.storage_filesystem, str(Path(self._storage.trial_fs_path, NOTE))

    def save_checkpoint(self, checkpoint_dir: str) -> NoReturn:
        """Refused."""
        _refuse(f"{type(self).__name__}.save_checkpoint")

    def save_to_path(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse(f"{type(self).__name__}.save_to_path")

    def get_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse(f"{type(self).__name__}.get_state")

    def load_checkpoint(self, checkpoint_dir: Any) -> NoReturn:
        """Refused."""
        _refuse(f"{type(self).__name__}.load_checkpoint")

    def restore(self, checkpoint_path: Any) -> NoReturn:
        """Refused."""
        _refuse(f"{type(self).__name__}.restore")

    def restore_from_path(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse(f"{type(self).__name__}.restore_from_path")

    def set_state(self, state: Any) -> NoReturn:
        """Refused."""
        _refuse(f"{type(self).__name__}.set_state")

    @classmethod
    def from_checkpoint(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse(f"{cls.__name__}.from_checkpoint")

    @staticmethod
    def from_state(state: Any) -> NoReturn:
        """Refused."""
        _refuse("from_state")


_REASON = (
    "a run can't be resumed yet, and a checkpoint of RLlib's would hold one rank's part of the optimizer, without the "
    "version of the weights and the position in the data. algo.save_pretrained(path) writes the model."
)


def _refuse(method: str) -> NoReturn:
    raise CheckpointsNotSupported(f"{method}: {_REASON}")
