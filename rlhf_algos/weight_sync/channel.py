"""The way of the weights: what a channel promises, its two ends, and how one is chosen.

A learner calls `send_from`, a rollout actor `receive_into`, and the driver, which made the channel, decides when a
version is sent, received and removed.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

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
        """In the driver: frees every version before `version`; nobody will ask for one again."""

    @abstractmethod
    def close(self) -> None:
        """In the driver, at the end: frees everything."""

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


def channel_maker(spec: Any) -> Callable[[], Channel]:
    """What makes the channel that a setting describes: of each run its own, so nothing is made here.

    Args:
        spec: "shared_memory", a `Channel` class (or a function that returns one), its dotted path
            "package.module.Name", or a mapping `{"type": one of these, option: value, ...}`.

    Raises:
        ImportError: if the module of a dotted path can't be imported, or has no such name.
        TypeError: if it is of the wrong type, or the options are not those that the class takes.
        ValueError: if the name is unknown, or a mapping has no "type".
    """
    options: dict[str, Any] = {}
    source = spec
    if isinstance(spec, Mapping):
        options = dict(spec)
        if "type" not in options:
            raise ValueError(f'weight_channel={options!r} has no "type". Give {{"type": name, option: value, ...}}.')
        source = options.pop("type")
    make = _named(source) if isinstance(source, str) else source
    if not callable(make) or (isinstance(make, type) and not issubclass(make, Channel)):
        raise TypeError(
            f"weight_channel={source!r} makes no rlhf_algos.weight_sync.Channel: give a name, a class, a dotted path, "
            'or {"type": name, option: value, ...}.'
        )
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise TypeError(f"weight_channel={spec!r}: {error}.") from error
    return partial(make, **options)


def _named(name: str) -> Any:
    """The class that a short name or a dotted path means."""
    from rlhf_algos.weight_sync.shared_memory import SharedMemory

    channels = {"shared_memory": SharedMemory}
    if name in channels:
        return channels[name]
    module_name, _, attribute = name.rpartition(".")
    if not module_name:
        raise ValueError(
            f"weight_channel={name!r} is unknown. Names: {', '.join(channels)}. A class of your own is named by its "
            'dotted path, "package.module.ClassName".'
        )
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"weight_channel={name!r} can't be imported: {error}. Install its package, or put its folder on "
            "PYTHONPATH, for every process."
        ) from error
