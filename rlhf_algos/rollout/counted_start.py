"""Rollout actors whose process keeps ending while it is built: Ray would start each a thousand times in silence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

#: How many processes of an actor may end while it is built, before that is the run's failure.
STARTS = 2


@contextmanager
def counted_start(folder: str | Path | None) -> Iterator[None]:
    """Counts the processes of this actor that ended in here, in a hidden file that outlives them.

    Args:
        folder: where the file is while the actor is built; None counts nothing.

    Raises:
        RuntimeError: if `STARTS` processes have ended in here before this one.
    """
    actor = None if folder is None else ray.get_runtime_context().get_actor_id()
    if folder is None or actor is None:
        yield
        return
    mark = Path(folder) / f".starting-{actor}"
    ended = mark.stat().st_size if mark.exists() else 0
    if ended >= STARTS:
        mark.unlink()
        raise RuntimeError(
            f"{ended} processes of this rollout actor, one after the other, ended while it was being built. Look at "
            "the environment's constructor, the engine's arguments (vllm(...)) and the memory: a call of os._exit, a "
            "crash in native code or more memory than there is ends a process without an error that could be caught. "
            "Its last output is in Ray's logs (/tmp/ray/session_latest/logs)."
        )
    mark.parent.mkdir(parents=True, exist_ok=True)
    with mark.open("ab") as file:
        file.write(b".")
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)
