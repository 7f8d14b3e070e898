"""A channel that makes the sampler worse on purpose: noise, rounding and lag on the way of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rlhf_algos.weight_sync.channel import Channel
from rlhf_algos.weight_sync.mismatch_injection import MismatchInjection


class InjectedChannel(Channel):
    """Another channel, whose actors get older weights, and get them changed.

    Args:
        channel: that carries the weights as they are.
        injection: what is done to them where they are received.
        seed: of the run, which decides the noise.
    """

    def __init__(self, channel: Channel, injection: MismatchInjection, *, seed: int) -> None:
        self.channel, self.injection, self.seed = channel, injection, seed

    def send(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Sends them as they are."""
        self.channel.send(weights, version)

    def receive(self, version: int) -> Mapping[str, torch.Tensor]:
        """The weights of a version, changed."""
        weights = self.channel.receive(version)
        if not self.injection.changes_weights:
            return weights
        return dict(self.injection.apply(weights.items(), seed=self.seed))

    def remove_older(self, version: int) -> None:
        """As the channel does it."""
        self.channel.remove_older(version)

    def close(self) -> None:
        """Closes the channel."""
        self.channel.close()

    def version_to_sample(self, trainer_version: int) -> int:
        """An older one, by the lag."""
        return self.injection.sampler_version(trainer_version)


def with_injection(channel: Channel, injection: MismatchInjection, *, seed: int) -> Channel:
    """The channel itself, or around it what makes the sampler worse, if the injection does."""
    return InjectedChannel(channel, injection, seed=seed) if injection.active else channel
