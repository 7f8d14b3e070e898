"""What a rollout actor's environment was doing when its process ended, readable from outside.

A reward function can end the whole process (`os._exit`, a crash in native code), and then there is nobody left to say
whose fault it was. So before the environment is called, sample and group are written into a mapped file, which outlives
the process.
"""

from __future__ import annotations

import logging
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

# Whether the environment is running, the group, the sample.
_RECORD = struct.Struct("<?7xqq")


@dataclass(frozen=True)
class Mark:
    """The episode in which the environment was running."""

    group: int
    sample: int


class ScoringMark:
    """Writes the mark of one actor.

    Args:
        path: of the file; overwritten.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(_RECORD.pack(False, 0, 0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _RECORD.size)

    @contextmanager
    def of(self, group: int, sample: int) -> Iterator[None]:
        """Marks the episode while the environment is called."""
        _RECORD.pack_into(self._memory, 0, True, group, sample)
        try:
            yield
        finally:
            _RECORD.pack_into(self._memory, 0, False, group, sample)


def mark_at(path: Path | None) -> ScoringMark | None:
    """An actor's mark; None without a path, and on a machine that does not have the driver's folder for marks."""
    if path is None:
        return None
    if not path.parent.is_dir():
        _say_unmarked(path.parent)
        return None
    return ScoringMark(path)


@cache
def _say_unmarked(folder: Path) -> None:
    """Once per process."""
    logger.warning(
        "%s, where actors note the episode whose environment is running, is not visible on this machine: if this "
        "process ends in an environment, nobody can say in which episode.",
        folder,
    )


def read_mark(path: Path) -> Mark | None:
    """The episode whose environment was running when the writer ended; None if none was, or there is no file."""
    if not path.exists():
        return None
    running, group, sample = _RECORD.unpack(path.read_bytes())
    return Mark(group, sample) if running else None
