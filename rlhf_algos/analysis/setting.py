"""Which corrections are compared."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_algos.corrections import make_corrector
from rlhf_algos.plugins import as_text
from rlhf_algos.routing_replay import make_router_replay


@dataclass(frozen=True)
class Setting:
    """One row of the comparison.

    Attributes:
        corrector: a `Corrector`; made of what `training(corrector=...)` takes.
        score_centering: whether the score's mean under the sampler is taken out.
        router_replay: a `RouterReplay`; made of what `training(router_replay=...)` takes.
    """

    corrector: Any = "none"
    score_centering: bool = False
    router_replay: Any = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "corrector", make_corrector(self.corrector))
        object.__setattr__(self, "router_replay", make_router_replay(self.router_replay))

    def __str__(self) -> str:
        parts = [as_text(self.corrector)]
        parts += ["centered"] if self.score_centering else []
        parts += [as_text(self.router_replay)] if self.router_replay.replays else []
        return " + ".join(parts)


#: The gradient that on-policy training would take: no correction at all.
REFERENCE = Setting()


def all_settings(
    correctors: Sequence[Any] = ("none", "is", "tis", "icepop"),
    score_centering: Sequence[bool] = (False, True),
    router_replays: Sequence[Any] = ("none",),
) -> list[Setting]:
    """Every combination that is allowed: centering needs a token-wise corrector."""
    settings = [
        Setting(corrector, centering, replay)
        for replay, centering, corrector in itertools.product(router_replays, score_centering, correctors)
    ]
    return [setting for setting in settings if not setting.score_centering or setting.corrector.elementwise]
