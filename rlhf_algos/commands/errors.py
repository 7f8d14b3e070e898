"""Errors as a user of the command line sees them: one message, not Ray's traceback of four processes."""

from __future__ import annotations

import traceback
from pathlib import Path

# Longer messages are cut; the whole error is in a file.
_SHOWN = 2000


class ConfigError(ValueError):
    """A configuration that can't be used; its text is the whole message."""


def cause_of(error: BaseException) -> BaseException:
    """The error as it was raised in another process, without Ray's wrapping."""
    while isinstance(inner := getattr(error, "cause", None), BaseException):
        error = inner
    return error


def message_of(error: BaseException) -> str:
    """The kind and text of an error, and what its notes add."""
    error = cause_of(error)
    text = str(error).strip()
    if type(error).__name__ == "OutOfMemoryError":
        # The rest is statistics and general advice.
        text = f"OutOfMemoryError: {text.splitlines()[0]} Something else may fill the memory; see what uses it."
    elif "Traceback (most recent call last)" in text or "ray::" in text:
        # The original could not be sent between processes; its own line ends the traceback.
        text = text.splitlines()[-1]
    else:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    notes = [str(note) for note in getattr(error, "__notes__", [])]
    shown = "\n".join([text if len(text) <= _SHOWN else text[:_SHOWN] + " ...", *notes])
    return shown.strip()


def write_traceback(error: BaseException, file: Path) -> Path:
    """Writes everything that is known of an error; returns the file."""
    file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return file
