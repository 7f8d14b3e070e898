"""Actors that have the configuration and the weights that hold now, however often Ray has restarted them.

Ray restarts a dead actor with what it was first constructed with, and RLlib notices only a death that a call runs into.
So an actor is asked what it has before anything is sampled, and gets what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.algorithms.base.remote import on_env_runners
from rlhf_algos.rollout.mismatch_injection import MismatchInjection


@dataclass(frozen=True)
class Standing:
    """What an actor has, or should have.

    Attributes:
        configuration: number of the `reset_config` that it was configured by; 0 as constructed.
        weight_version: of its weights; None without any.
        injection: what was done to them on purpose.
    """

    configuration: int
    weight_version: int | None
    injection: MismatchInjection | None


def standing_of(runner: Any) -> Standing:
    """What an actor has."""
    return Standing(runner.configuration, runner.weight_version, runner.injection)


def bring_up_to_date(
    group: EnvRunnerGroup, wanted: Standing, *, config: Any, load: Callable[[list[int]], object]
) -> None:
    """Configures and loads the healthy actors that stand elsewhere.

    Args:
        group: the actors.
        wanted: what all are to have.
        config: that belongs to `wanted.configuration`.
        load: has actors, by id, load `wanted`'s weights.
    """
    found = on_env_runners(group, standing_of)
    other = [actor for actor, has in found.items() if has.configuration != wanted.configuration]
    if other:
        number = wanted.configuration
        on_env_runners(group, lambda runner: runner.configure(config, number), actors=other)
    behind = [actor for actor, has in found.items() if has != wanted]
    if behind:
        load(behind)
