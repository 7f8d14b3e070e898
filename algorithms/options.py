"""One declaration per option: its name, where it is set, its type and range, its default, what it means.

Values are checked and made plain with pydantic, in its strict mode: a whole number is no float with nothing behind the
point, a number is no text that looks like one, true is not 1, and NaN or infinity is no number. NumPy's numbers, which
sweeps and data frames bring along, are taken as the Python numbers that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, Strict, TypeAdapter, ValidationError


@dataclass(frozen=True)
class Kind:
    """What a value may be.

    Attributes:
        annotation: for pydantic.
        words: the same for a reader, to follow "must be".
    """

    annotation: Any
    words: str

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """What checks a value; made when it is first needed, and kept."""
        return TypeAdapter(self.annotation)


def whole(at_least: int | None = None, at_most: int | None = None) -> Kind:
    """An int within bounds, both included."""
    both = at_least is not None and at_most is not None
    bounds = f" from {at_least} to {at_most}" if both else _bounds(at_least=at_least, at_most=at_most)
    return Kind(Annotated[int, Strict(), Field(ge=at_least, le=at_most)], f"a whole number{bounds}")


def number(
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Kind:
    """A finite float within bounds; an int is taken as one."""
    field = Field(ge=at_least, gt=above, le=at_most, lt=below, allow_inf_nan=False)
    bounds = _bounds(at_least=at_least, above=above, at_most=at_most, below=below)
    return Kind(Annotated[float, Strict(), field], f"a finite number{bounds}")


def flag() -> Kind:
    """A bool."""
    return Kind(Annotated[bool, Strict()], "True or False")


def text() -> Kind:
    """A str."""
    return Kind(Annotated[str, Strict()], "text")


def one_of(*choices: str) -> Kind:
    """One of a few names."""
    *firsts, last = (repr(choice) for choice in choices)
    return Kind(Literal[choices], f"{', '.join(firsts)} or {last}" if firsts else last)


def optional(kind: Kind) -> Kind:
    """None, or what the kind says."""
    return Kind(kind.annotation | None, f"None or {kind.words}")


def sequence(of: Kind, length: int | None = None) -> Kind:
    """A list or tuple, of a fixed length or any; a NumPy array is taken as a list."""
    size = Field(min_length=length or 0, max_length=length)
    how_many = "a list" if length is None else f"{length} values"
    items = Sequence[of.annotation]  # type: ignore[name-defined]
    return Kind(Annotated[items, size], f"{how_many}, each {of.words}")


def mapping() -> Kind:
    """A dict with names as keys."""
    return Kind(Mapping[str, Any], "a dict")


def either(first: Kind, second: Kind) -> Kind:
    """What one of two kinds says."""
    return Kind(first.annotation | second.annotation, f"{first.words} or {second.words}")


def anything() -> Kind:
    """No restriction: another part checks it, and says what is wrong with it."""
    return Kind(Any, "any value")


def number_or_schedule(value: Kind) -> Kind:
    """A number, or RLlib's schedule of it: `[[step, value], [step, value], ...]` with step 0 first and steps rising."""
    point = Annotated[Sequence[Any], Field(min_length=2, max_length=2)]
    step, level = whole(at_least=0).adapter, value.adapter

    def checked(points: Sequence[Sequence[Any]]) -> list[list[Any]]:
        pairs = [[step.validate_python(at), level.validate_python(there)] for at, there in points]
        steps = [at for at, _ in pairs]
        if steps[0] != 0 or any(after <= before for before, after in pairwise(steps)):
            raise ValueError("steps must rise from 0")
        return pairs

    schedule = Annotated[Sequence[point], Field(min_length=2), AfterValidator(checked)]
    return Kind(
        value.annotation | schedule,
        f"{value.words}, or a schedule [[0, value], [step, value], ...] of such numbers with rising steps",
    )


def _bounds(**bounds: float | None) -> str:
    said = [f"{name.replace('_', ' ')} {bound:g}" for name, bound in bounds.items() if bound is not None]
    if not said:
        return ""
    return (" of " if said[0].startswith("at least") else " ") + " and ".join(said)


@dataclass(frozen=True)
class Option:
    """A declared option.

    Attributes:
        section: method of the config that sets it.
        name: attribute that holds it.
        kind: type and range.
        default: before anything is set.
        meaning: a phrase, with which the argument's text in the section's docstring begins.
        argument: of the section's method, where it has another name than the attribute.
        why: an explanation that an error ends with.
        of_process: whether a rollout actor or learner is started with it and keeps it while it lives.
        as_it_is: the value belongs to somebody else, and NumPy's arrays and numbers in it stay what they are.
        of_rllib: RLlib has the option; its range, default and meaning are those that it has here.
        recorded: a run folder's config.json always has it; otherwise only where it was given.
        in_files: a configuration file may set it.
    """

    section: str
    name: str
    kind: Kind
    default: Any = None
    meaning: str = ""
    argument: str = ""
    why: str = ""
    of_process: bool = False
    as_it_is: bool = False
    of_rllib: bool = False
    recorded: bool = True
    in_files: bool = True

    @property
    def keyword(self) -> str:
        """The argument's name."""
        return self.argument or self.name

    def shown(self, value: Any) -> str:
        """The option with a value, as a user sets it: `training(group_size=1)`."""
        return f"{self.section}({self.keyword}={value!r})"

    def checked(self, value: Any, shown: Callable[[Any], str] | None = None) -> Any:
        """The value in plain Python types, unless it is to stay as it is.

        Args:
            value: what was given.
            shown: says how it was given, for an error, which alone writes it out; as `self.shown` unless given.

        Raises:
            ValueError: if it is of another type or out of range; names option and value, and says what it must be.
        """
        try:
            return self.kind.adapter.validate_python(value if self.as_it_is else plain(value))
        except ValidationError:
            why = f": {self.why}" if self.why else ""
            raise ValueError(f"{(shown or self.shown)(value)} must be {self.kind.words}{why}.") from None


def plain(value: Any) -> Any:
    """A value with NumPy's scalars, and lists of numbers, as Python's; containers are copied, all else is kept."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    if type(value) is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    return value


def by_name(options: Iterable[Option]) -> dict[str, Option]:
    """Options by attribute; of two with one name the later one counts."""
    return {option.name: option for option in options}
