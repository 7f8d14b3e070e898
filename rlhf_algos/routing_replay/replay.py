"""The pluggable setting: which recorded routes a trainer replays, if any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rlhf_algos.plugins import PluginOption, plugin_settings


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

    #: The short name of one of ours; None for a class outside of this library. Not inherited.
    registered_name: ClassVar[str | None] = None

    @property
    def replays(self) -> bool:
        """True if any pass replays anything."""
        return self.uses_rollout_routes or self.records_in_old_policy_pass

    def select(self, routes: Tensor) -> Tensor:
        """What to replay of the recorded routes `[N, L, E]`; entries of -1 keep the live route. Default: all."""
        return routes

    def settings(self) -> dict[str, Any]:
        """A dict from which `make_router_replay` makes an equal instance."""
        return plugin_settings(self)


@dataclass(frozen=True)
class NoReplay(RouterReplay):
    """The trainer's routers choose for themselves."""

    registered_name: ClassVar[str | None] = "none"


@dataclass(frozen=True)
class R3(RouterReplay):
    """Rollout routing replay (arXiv 2510.11370): the experts that the sampler chose while it generated.

    Removes the expert-selection part of the difference between sampler and trainer (MATH 6). The rollout actor must
    record routes.
    """

    uses_rollout_routes: ClassVar[bool] = True
    registered_name: ClassVar[str | None] = "r3"


@dataclass(frozen=True)
class R2(RouterReplay):
    """Routing replay within the trainer (MATH 6.5): the experts of its old-policy pass.

    Makes the ratio p / p0 free of route changes between the optimizer steps of one iteration. Says nothing about the
    sampler, so it needs no recorded routes.
    """

    records_in_old_policy_pass: ClassVar[bool] = True
    registered_name: ClassVar[str | None] = "r2"


#: The short names, and what each means.
_REPLAYS: dict[str, type[RouterReplay]] = {str(cls.registered_name): cls for cls in (NoReplay, R2, R3)}

RouterReplaySpec = RouterReplay | type[RouterReplay] | str | Mapping[str, Any] | None

_OPTION = PluginOption("router_replay", RouterReplay, _REPLAYS)


def make_router_replay(spec: RouterReplaySpec = None) -> RouterReplay:
    """Makes a `RouterReplay` from what a configuration holds.

    Args:
        spec: an instance; a class; a name ("none", "r2", "r3"); None for no replay; a dict with "type" (a name, a
            class or a dotted path) and the options; or the dotted path of a subclass ("my_package.module.MyReplay").

    Raises:
        ImportError: the module of a dotted path can't be imported, or has no such class.
        TypeError: something else than the above, or a path to something that is no `RouterReplay`.
        ValueError: an unknown name or option, or a class that wants routes from two places.
    """
    replay = _OPTION.make(spec)
    if replay.uses_rollout_routes and replay.records_in_old_policy_pass:
        raise ValueError(
            f"{replay.settings()['type']} sets both uses_rollout_routes and records_in_old_policy_pass; a pass replays "
            "the routes of one origin. Set one of them to False."
        )
    return replay
