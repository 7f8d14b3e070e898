"""Actors that have the configuration and the weights that hold now, however often Ray has restarted them.

Ray restarts a dead actor with what it was first constructed with, and RLlib notices only a death that a call runs into.
So an actor is asked what it has before anything is sampled, and gets what it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.driver.calls import on_env_runners
from rlhf_algos.weight_sync import Channel, MismatchInjection, receive_into


@dataclass(frozen=True)
class Weights:
    """Weights that actors are to have.

    Attributes:
        channel: on which they were sent.
        version: theirs.
    """

    channel: Channel
    version: int


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


@dataclass(frozen=True)
class Crew:
    """Rollout actors, or those of an evaluation, with the configuration that holds for them now.

    Attributes:
        group: RLlib's.
        config: that each of them is to have.
        configuration: its number.
    """

    group: EnvRunnerGroup
    config: AlgorithmConfig
    configuration: int

    def bring_up_to_date(self, weights: Weights) -> None:
        """Configures the healthy actors that have another configuration, and loads those that have other weights."""
        wanted = Standing(self.configuration, weights.version, weights.channel.injection)
        found = on_env_runners(self.group, standing_of)
        other = [actor for actor, has in found.items() if has.configuration != wanted.configuration]
        if other:
            self.configure(other)
        behind = [actor for actor, has in found.items() if has != wanted]
        if behind:
            load(self.group, weights, actors=behind)

    def configure(self, actors: list[int] | None = None) -> None:
        """Gives actors their configuration, by id or all healthy ones; they have no weights afterwards."""
        config, number = self.config, self.configuration
        on_env_runners(self.group, lambda runner: runner.configure(config, number), actors=actors)

    def restore(self, weights: Weights) -> list[int]:
        """Takes actors back that Ray has restarted, and brings all up to date; returns the ids of those taken back.

        All: one that was idle when it died stands among the healthy ones, and has nothing.
        """
        restored = list(self.group.probe_unhealthy_env_runners())
        self.bring_up_to_date(weights)
        return restored


def standing_of(runner: Any) -> Standing:
    """What an actor has."""
    return Standing(runner.configuration, runner.weight_version, runner.injection)


def load(group: EnvRunnerGroup, weights: Weights, *, actors: list[int] | None = None) -> None:
    """Has actors load weights, all healthy ones or those with the given ids.

    Raises:
        RuntimeError: if an actor acknowledges another version.
    """
    channel, version = weights.channel, weights.version
    acknowledged = on_env_runners(group, lambda runner: receive_into(runner, channel, version), actors=actors)
    wrong = {actor: got for actor, got in acknowledged.items() if got != version}
    if wrong:
        raise RuntimeError(f"Rollout actors acknowledged other weight versions than {version}: {wrong}.")
