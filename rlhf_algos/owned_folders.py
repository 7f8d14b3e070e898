"""Temporary folders that say whether their owner lives, so that a killed process's can be removed, and only those.

The owner holds a lock (`flock`) on a file in its folder. The system releases it however the process ends, and it is
seen from other containers that share the memory disk; a process number would mean another process one day, or there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
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
    """Every such folder in `parent`; nothing is changed. Links and files that have such a name are none."""
    found = []
    for path, status in _folders(parent):
        if status.st_uid != os.getuid():
            found.append(FoundFolder(path, 0, "another user"))
            continue
        try:
            lock = _open_owner(path)
            owner: Literal["living", "gone", "unknown"] = "unknown"
            if lock is not None:
                owner = "gone" if _is_free(lock) else "living"
                os.close(lock)
            found.append(FoundFolder(path, _size(path), owner))
        except FileNotFoundError:
            # Removed just now, by its owner or another start.
            continue
    return found


def remove_abandoned(parent: Path) -> list[Path]:
    """Removes this user's folders whose owner is gone, and says so in the log; returns them.

    One that names no owner is left alone and named: it may be a living process's of an older version. So is one that
    can't be removed. Links and files that have such a name are passed over.
    """
    removed = []
    for path, status in _folders(parent):
        if status.st_uid != os.getuid():
            continue
        try:
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
                shutil.rmtree(path)
                removed.append(path)
                logger.warning("Removed %s (%s), which a process that was killed has left.", path, shown_size(size))
        except OSError as error:
            logger.warning("%s (%s) could not be removed: %s", path, shown_size(size), error)
        finally:
            os.close(lock)
    return removed


def shown_size(size: int) -> str:
    """Bytes for a reader."""
    return f"{size / 2**20:.1f} MiB"


def _folders(parent: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """What has the name of such a folder and is one; anybody may put a link there, which could lead anywhere."""
    for path in sorted(parent.glob(f"{PREFIX}*")):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            yield path, status


def _open_owner(path: Path) -> int | None:
    """The owner's lock file, opened; None if the folder has none that is a file and can be opened.

    Raises:
        FileNotFoundError: if the folder is gone.
    """
    file = path / OWNER_FILE
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return None
        return os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if not path.exists():
            raise
        return None
    except OSError as error:
        logger.warning("%s could not be opened: %s", file, error)
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
            status = file.lstat()
        except FileNotFoundError:
            # An older version, removed just now.
            continue
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size
