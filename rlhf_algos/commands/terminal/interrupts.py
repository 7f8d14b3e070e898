"""Ctrl-C while something runs that should not stop halfway."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """Whether the user asked to stop."""

    requested = False


@contextmanager
def deferred(announce: Callable[[], None]) -> Iterator[Interrupts]:
    """The first Ctrl-C only sets `requested`; the second raises KeyboardInterrupt at once.

    Args:
        announce: called at the first one.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        # Python delivers signals to the main thread alone.
        yield interrupts
        return

    def handle(number: int, frame: FrameType | None) -> Any:
        if interrupts.requested:
            raise KeyboardInterrupt
        interrupts.requested = True
        announce()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
