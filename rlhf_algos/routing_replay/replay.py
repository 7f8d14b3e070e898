"""The pluggable setting: which recorded routes a trainer replays, if any."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor


@dataclass(frozen=True)
class RouterReplay:
    """Whose routes the trainer's forward passes use. Subclass it to replay something else.

    A subclass says where its routes come from with two class attributes, and may choose among them in `select`.
    Its options are dataclass fields with JSON-able values, so that a configuration can hold and save them::

        @dataclass(frozen=True)
        class UpperLayersR3(R3):
            first_layer: int = 8

            def select(self, routes):
                selected = routes.clone()
                selected[:, : self.first_layer] = -1
                return selected

        config.training(router_replay={"type": "my_package.my_module.UpperLayersR3", "first_layer": 4})

    Attributes:
        uses_rollout_routes: the routes that the sampler recorded are replayed in the old-policy pass and in every
            update pass (MATH 6.3).
        records_in_old_policy_pass: the trainer's own routes of the old-policy pass are replayed in the update passes
            (MATH 6.5). That pass then always takes place.
    """

    uses_rollout_routes: ClassVar[bool] = False
    records_in_old_policy_pass: ClassVar[bool] = False

    @property
    def replays(self) -> bool:
        """True if any pass replays anything."""
        return self.uses_rollout_routes or self.records_in_old_policy_pass

    def select(self, routes: Tensor) -> Tensor:
        """What to replay of the recorded routes `[N, L, E]`; entries of -1 keep the live route. Default: all."""
        return routes

    def settings(self) -> dict[str, Any]:
        """A dict from which `make_router_replay` makes an equal instance."""
        return {"type": _name_of(type(self)), **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True)
class NoReplay(RouterReplay):
    """The trainer's routers choose for themselves."""


@dataclass(frozen=True)
class R3(RouterReplay):
    """Rollout routing replay (arXiv 2510.11370): the experts that the sampler chose while it generated.

    Removes the expert-selection part of the difference between sampler and trainer (MATH 6). The rollout actor must
    record routes.
    """

    uses_rollout_routes: ClassVar[bool] = True


@dataclass(frozen=True)
class R2(RouterReplay):
    """Routing replay within the trainer (MATH 6.5): the experts of its old-policy pass.

    Makes the ratio p / p0 free of route changes between the optimizer steps of one iteration. Says nothing about the
    sampler, so it needs no recorded routes.
    """

    records_in_old_policy_pass: ClassVar[bool] = True


_NAMES: dict[str, type[RouterReplay]] = {"none": NoReplay, "r2": R2, "r3": R3}

RouterReplaySpec = RouterReplay | type[RouterReplay] | str | Mapping[str, Any] | None


def make_router_replay(spec: RouterReplaySpec) -> RouterReplay:
    """Makes a `RouterReplay` from what a configuration holds.

    Args:
        spec: an instance; a class; a name ("none", "r2", "r3"); None for no replay; a dict with "type" (a name, a
            class or a dotted path) and the options; or the dotted path of a subclass ("my_package.module.MyReplay").

    Raises:
        ValueError: an unknown name, path or option, or a class that wants routes from two places.
        TypeError: something else than the above, or a path to something that is no `RouterReplay`.
    """
    if spec is None:
        return NoReplay()
    if isinstance(spec, RouterReplay):
        return _checked(spec)
    if isinstance(spec, Mapping):
        options = dict(spec)
        if "type" not in options:
            raise ValueError(
                f'router_replay={dict(spec)} has no "type"; give one of {sorted(_NAMES)} or a dotted path.'
            )
        return _build(_class_of(options.pop("type")), options)
    return _build(_class_of(spec), {})


def _class_of(name: Any) -> type[RouterReplay]:
    if isinstance(name, type) and issubclass(name, RouterReplay):
        return name
    if not isinstance(name, str):
        raise TypeError(
            f"router_replay={name!r} is a {type(name).__name__}; give a RouterReplay, a name ({sorted(_NAMES)}), "
            "a dict or a dotted path."
        )
    if name in _NAMES:
        return _NAMES[name]
    if "." in name:
        return _imported(name)
    near = difflib.get_close_matches(name.lower(), _NAMES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"Unknown router_replay {name!r}.{hint} Known: {sorted(_NAMES)}, or the dotted path of your own subclass "
        'of RouterReplay, as in "my_package.my_module.MyReplay".'
    )


def _imported(path: str) -> type[RouterReplay]:
    module_name, _, class_name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"router_replay={path!r} can't be imported: {error}.") from error
    if not isinstance(found, type) or not issubclass(found, RouterReplay):
        raise TypeError(f"router_replay={path!r} is {found!r}, not a subclass of RouterReplay.")
    return found


def _build(cls: type[RouterReplay], options: dict[str, Any]) -> RouterReplay:
    known = [field.name for field in fields(cls)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"router_replay {_name_of(cls)!r} has no option {unknown[0]!r}.{hint} Its options: {known}.")
    return _checked(cls(**options))


def _checked(replay: RouterReplay) -> RouterReplay:
    if replay.uses_rollout_routes and replay.records_in_old_policy_pass:
        raise ValueError(
            f"{_name_of(type(replay))} sets both uses_rollout_routes and records_in_old_policy_pass; a pass replays "
            "the routes of one origin. Set one of them to False."
        )
    return replay


def _name_of(cls: type[RouterReplay]) -> str:
    for name, known in _NAMES.items():
        if cls is known:
            return name
    return f"{cls.__module__}.{cls.__qualname__}"
