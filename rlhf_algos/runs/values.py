"""Results and configurations as a run folder keeps them: in JSON's types."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any


def flatten(result: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a nested mapping under keys joined with "/"; what is no finite number is left out."""
    flat: dict[str, float] = {}
    for key, value in result.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            flat |= flatten(value, name)
        elif not isinstance(value, bool | str):
            try:
                number = float(value)
            except (TypeError, ValueError):
                continue
            if math.isfinite(number):
                flat[name] = number
    return flat


def plain_config(value: Any) -> Any:
    """A configuration in JSON's types: tuples and sets as lists, classes and functions by name, others as text."""
    if isinstance(value, Mapping):
        return {str(key): plain_config(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_config(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain_config(item) for item in value), key=str)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain_config(value.item())
    return without_address(str(value))


def without_address(text: str) -> str:
    """Python's text of an object without its place in memory, which is different in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
