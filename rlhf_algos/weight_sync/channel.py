"""The way of the weights: what a channel promises, and its two ends.

A learner calls `send_from`, a rollout actor `receive_into`, and the driver, which made the channel, decides when a
version is sent, received and removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

from rlhf_algos.weight_sync.checkpoint_layout import Layout, check_layout
from rlhf_algos.weight_sync.mismatch_injection import NO_INJECTION, MismatchInjection


class Channel(ABC):
    """How the weights of one run come from the trainer to the rollout actors.

    The driver makes one, and both ends get copies of it by pickle: what belongs to the driver alone (a folder that it
    owns, a server) must stay behind, in `__getstate__`. A version is received by any number of actors, some of them
    late (Ray has restarted them), until the driver calls `remove_older` with a newer one.

    Attributes:
        injection: what is done to the weights on purpose on their way.
    """

    injection: MismatchInjection = NO_INJECTION

    @abstractmethod
    def send(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """On the learners' first rank: makes a version receivable, all of it or nothing.

        Args:
            weights: under checkpoint names, on any device; valid until this returns.
            version: counted by the driver, from 0.
        """

    @abstractmethod
    def receive(self, version: int) -> Mapping[str, torch.Tensor]:
        """In an actor: the weights of a version that was sent, under their names, in main memory.

        Raises:
            FileNotFoundError: if it can't be had here, or was removed.
        """

    @abstractmethod
    def remove_older(self, version: int) -> None:
        """In the driver: frees every version before `version`; nobody asks for one before it is sent anew.

        That happens: a run that takes over another's processes counts from 0 again.
        """

    @abstractmethod
    def close(self) -> None:
        """In the driver, at the end: frees everything; does nothing if called again."""

    def version_to_sample(self, trainer_version: int) -> int:
        """The version that actors sample with when the trainer has `trainer_version`."""
        return trainer_version


class SendingEnd(Protocol):
    """A learner, as a channel sees it."""

    @property
    def rank(self) -> int:
        """Of the learner in its process group."""

    def checkpoint_tensors(self) -> dict[str, torch.Tensor]:
        """The weights under checkpoint names on rank 0, empty elsewhere; all ranks call it together."""


class ReceivingEnd(Protocol):
    """A rollout actor, as a channel sees it."""

    checkpoint_layout: Layout

    def load_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, injection: MismatchInjection
    ) -> int:
        """Replaces the engine's weights and returns their version."""


def send_from(learner: SendingEnd, channel: Channel, version: int) -> None:
    """Sends the weights of the learners as `version`; every rank calls it, and the first one sends."""
    weights = learner.checkpoint_tensors()
    if learner.rank == 0:
        channel.send(weights, version)


def receive_into(actor: ReceivingEnd, channel: Channel, version: int) -> int:
    """Has an actor load a version; returns the version that it acknowledges.

    Raises:
        ValueError: if names or shapes are not those of the actor's checkpoint; its engine is left as it was.
    """
    weights = channel.receive(version)
    check_layout({name: tuple(tensor.shape) for name, tensor in weights.items()}, actor.checkpoint_layout)
    return actor.load_weights(weights.items(), version, injection=channel.injection)
