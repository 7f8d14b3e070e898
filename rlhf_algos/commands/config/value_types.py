"""Whether a value of a file fits the annotation of the argument it is meant for."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


def fits(value: Any, annotation: Any) -> bool:
    """Whether the value is what the annotation says; True for an annotation that a file's values can't be held to.

    >>> fits(1, float), fits(True, int), fits([1, 2], list[int]), fits("a", int | None)
    (True, False, True, False)
    """
    if get_origin(annotation) is Annotated:
        return fits(value, get_args(annotation)[0])
    if annotation in (None, type(None)):
        return value is None
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is str:
        return isinstance(value, str)
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    if _is_sequence(origin):
        items = [argument for argument in arguments if argument is not Ellipsis]
        return isinstance(value, list) and (len(items) != 1 or all(fits(item, items[0]) for item in value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    return True


def described(annotation: Any) -> str:
    """An annotation in words."""
    if get_origin(annotation) is Annotated:
        return described(get_args(annotation)[0])
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if annotation is None or annotation in _NAMES:
        return _NAMES[type(None) if annotation is None else annotation]
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(described(option) for option in arguments))
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in arguments)
    if _is_sequence(origin):
        return "a list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "keys and values"
    return str(getattr(annotation, "__name__", annotation))


def _is_sequence(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence) and not issubclass(origin, str | bytes)
