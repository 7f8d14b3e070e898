"""From a setting (a name, a dict, a dotted path, a class) to a corrector."""

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_algos.corrections.corrector import Corrector
from rlhf_algos.corrections.sequence_level import SequenceMask, SequenceTIS
from rlhf_algos.corrections.token_wise import TIS, IcePop, ImportanceSampling, NoCorrection

#: The short names, and what each means.
CORRECTORS: dict[str, type[Corrector]] = {
    "none": NoCorrection,
    "is": ImportanceSampling,
    "tis": TIS,
    "icepop": IcePop,
    "sequence_tis": SequenceTIS,
    "sequence_mask": SequenceMask,
}

CorrectorSpec = Corrector | type[Corrector] | str | Mapping[str, Any] | None


def make_corrector(spec: CorrectorSpec = None) -> Corrector:
    """Build the corrector that a setting describes.

    A dotted path imports a module that the user names, as an import statement would; nothing is unpickled and
    nothing is evaluated.

    Args:
        spec: an instance (returned as it is), a short name of ``CORRECTORS``, the dotted path
            "package.module.ClassName" of a subclass of ``Corrector``, a class, None (the same as "none"), or a
            mapping {"type": name, path or class, option: value, ...}, which ``Corrector.settings()`` gives.

    Returns:
        The corrector.

    Raises:
        ImportError: the module of a dotted path can't be imported, or has no such class.
        TypeError: ``spec``, or what it names, is of the wrong type; an option has the wrong type.
        ValueError: unknown name, no "type", unknown or missing option, or a value out of range.
    """
    if isinstance(spec, Corrector):
        return spec
    if spec is None:
        return NoCorrection()
    if isinstance(spec, Mapping):
        options = dict(spec)
        if "type" not in options:
            raise ValueError(f'corrector={options!r} has no "type". Give {{"type": name, option: value, ...}}.')
        return _build(_corrector_class(options.pop("type")), options)
    return _build(_corrector_class(spec), {})


def _corrector_class(source: Any) -> type[Corrector]:
    """The class that a short name, a dotted path or a class means."""
    if not isinstance(source, str | type):
        raise TypeError(
            f"corrector={source!r} is of type {type(source).__name__}. Give a Corrector, a name, a dotted path, a "
            'class, None, or {"type": name, option: value, ...}.'
        )
    if isinstance(source, str):
        if source in CORRECTORS:
            return CORRECTORS[source]
        found = _imported(source)
    else:
        found = source
    if not isinstance(found, type) or not issubclass(found, Corrector):
        raise TypeError(
            f"corrector={source!r} is {found!r}, which is not a subclass of rlhf_algos.corrections.Corrector."
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise TypeError(f"corrector={source!r} is abstract: use a subclass of it that has {missing}().")
    return found


def _imported(path: str) -> Any:
    """What a dotted path names."""
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(
            f"corrector={path!r} is unknown{_did_you_mean(path, CORRECTORS)}. Names: {', '.join(CORRECTORS)}. "
            'A class of your own is named by its dotted path, "package.module.ClassName".'
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ImportError(
            f"corrector={path!r} can't be imported: {error}. Install its package, or put its folder on PYTHONPATH, "
            "for every process that trains."
        ) from error
    if not hasattr(module, name):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ImportError(f"corrector={path!r}: {module_name} has no {name!r}{_did_you_mean(name, classes)}.")
    return getattr(module, name)


def _build(cls: type[Corrector], options: dict[str, Any]) -> Corrector:
    """An instance, after a check of the names of the options."""
    parameters = inspect.signature(cls).parameters.values()
    named = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option not in named and not takes_any:
            valid = f"Options: {', '.join(named)}." if named else "It has no options."
            raise ValueError(
                f"{cls.__name__} has no option {option!r}{_did_you_mean(str(option), named)}; got {options!r}. {valid}"
            )
    missing = [name for name, p in named.items() if p.default is p.empty and name not in options]
    if missing:
        raise ValueError(
            f"{cls.__name__} needs the option(s) {', '.join(missing)}: give an instance, or a dict that has them."
        )
    return cls(**options)


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    """The closest known word in brackets, or nothing."""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[matches[0]]!r}?)" if matches else ""
