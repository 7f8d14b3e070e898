"""From a setting (a name, a dict, a dotted path, a class) to a corrector."""

from collections.abc import Mapping
from typing import Any

from rlhf_algos.corrections.corrector import Corrector
from rlhf_algos.corrections.sequence_level import SequenceMask, SequenceTIS
from rlhf_algos.corrections.token_wise import TIS, IcePop, ImportanceSampling, NoCorrection
from rlhf_algos.plugins import PluginOption

#: The short names, and what each means.
CORRECTORS: dict[str, type[Corrector]] = {
    str(cls.registered_name): cls for cls in (NoCorrection, ImportanceSampling, TIS, IcePop, SequenceTIS, SequenceMask)
}

CorrectorSpec = Corrector | type[Corrector] | str | Mapping[str, Any] | None

_OPTION: PluginOption[Corrector] = PluginOption("corrector", Corrector, CORRECTORS)  # type: ignore[type-abstract]


def make_corrector(spec: CorrectorSpec = None) -> Corrector:
    """Build the corrector that a setting describes.

    A dotted path imports a module that the user names, as an import statement would; nothing is unpickled and
    nothing is evaluated.

    Args:
        spec: an instance (returned as it is), a short name of `CORRECTORS`, the dotted path
            "package.module.ClassName" of a subclass of `Corrector`, a class, None (the same as "none"), or a
            mapping {"type": name, path or class, option: value, ...}, which `Corrector.settings()` gives.

    Returns:
        The corrector.

    Raises:
        ImportError: the module of a dotted path can't be imported, or has no such class.
        TypeError: `spec`, or what it names, is of the wrong type; an option has the wrong type.
        ValueError: unknown name, no "type", unknown or missing option, or a value out of range.
    """
    return _OPTION.make(spec)
