"""Temporary folders that say whether their owner lives, so that a killed process's can be removed, and only those.

The owner holds a lock (`flock`) on a file in its folder. The system releases it however the process ends, and it is
seen from other containers that share the memory disk; a process number would mean another process one day, or there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

logger = logging.getLogger(__name__)

PREFIX = "rlhf_algos-"
OWNER_FILE = "owner"
# A folder that is being made has no owner yet.
_NEW_S = 60.0


class OwnedFolder:
    """A folder of this process, readable by this user alone; it goes with `close`, the object, or the interpreter.

    Args:
        parent: where it is made. What owners that are gone have left there is removed first.

    Attributes:
        path: of the folder.
    """

    def __init__(self, parent: Path) -> None:
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # Locked before it has its name: nobody can find it unlocked while this process lives.
        unnamed = self.path / f"{OWNER_FILE}.new"
        lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, f"process {os.getpid()}\n".encode())
        unnamed.rename(self.path / OWNER_FILE)
        self._free = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Removes the folder and what is in it."""
        self._free()


def _remove(path: Path, lock: int, owner: int) -> None:
    # A forked process ends without touching what is not its own.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


@dataclass(frozen=True)
class FoundFolder:
    """A folder that some process made: `size` in bytes; 0 where it can't be read.

    `owner` is "living", "gone", "unknown" (the folder names none) or "another user" (who may live or not).
    """

    path: Path
    size: int
    owner: Literal["living", "gone", "unknown", "another user"]


def found_folders(parent: Path) -> list[FoundFolder]:
    """Every such folder in `parent`; nothing is changed."""
    found = []
    for path in sorted(parent.glob(f"{PREFIX}*")):
        owner: Literal["living", "gone", "unknown", "another user"] = "another user"
        try:
            if path.stat().st_uid == os.getuid():
                lock = _open_owner(path)
                owner = "unknown" if lock is None else "gone" if _is_free(lock) else "living"
                if lock is not None:
                    os.close(lock)
            found.append(FoundFolder(path, _size(path), owner))
        except FileNotFoundError:
            # Removed just now, by its owner or another start.
            continue
    return found


def remove_abandoned(parent: Path) -> list[Path]:
    """Removes this user's folders whose owner is gone, and says so in the log; returns them.

    One that names no owner is left alone and named: it may be a living process's of an older version.
    """
    removed = []
    for path in sorted(parent.glob(f"{PREFIX}*")):
        try:
            status = path.stat()
            if status.st_uid != os.getuid():
                continue
            lock = _open_owner(path)
            size = _size(path)
        except FileNotFoundError:
            continue
        if lock is None:
            if time.time() - status.st_mtime > _NEW_S:
                logger.warning(
                    "%s (%s) names no owner and is left alone; remove it if no run uses it.", path, shown_size(size)
                )
            continue
        try:
            if _is_free(lock):
                # Held until the folder is gone, so that two starts do not remove it at once.
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
                logger.warning("Removed %s (%s), which a process that was killed has left.", path, shown_size(size))
        finally:
            os.close(lock)
    return removed


def shown_size(size: int) -> str:
    """Bytes for a reader."""
    return f"{size / 2**20:.1f} MiB"


def _open_owner(path: Path) -> int | None:
    """The owner's lock file, opened; None if the folder has none."""
    try:
        return os.open(path / OWNER_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        if not path.exists():
            raise
        return None


def _is_free(lock: int) -> bool:
    """Whether nobody holds the lock; then this process holds it until it is closed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(path: Path) -> int:
    size = 0
    for file in path.rglob("*"):
        try:
            size += file.lstat().st_size if file.is_file() else 0
        except FileNotFoundError:
            # An older version, removed just now.
            continue
    return size
