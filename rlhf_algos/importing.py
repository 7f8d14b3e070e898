"""Importing an engine in less time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """For imports of thousands of modules: what they make stays, and Python would look through all of it many times.

    That is an eighth of the time of importing vLLM or DeepSpeed.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
