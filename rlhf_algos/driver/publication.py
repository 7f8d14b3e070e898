"""Which version of the trainer's weights there is, who shall have it, and how long it is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.rllib.core.learner.learner_group import LearnerGroup

from rlhf_algos.driver.calls import on_learners
from rlhf_algos.driver.crew import Crew, Weights
from rlhf_algos.weight_sync import Channel, MismatchInjection, send_from, with_injection


class Publication:
    """Counts the versions of one run's weights, from 0, and gives each to the actors that are to sample with it.

    Nobody else counts. A version counts once it can be received: an evaluation beside training may ask for it at any
    time, and training removes none that an evaluation is reading.

    Args:
        channel: of the run.
        learners: whose weights they are.
        training: the rollout actors; None without.
        is_received: whether anybody receives weights; if not, nothing is sent.
        injection: what is done to the rollout actors' weights on purpose.
        seed: of the run, which decides injected noise.

    Attributes:
        version: of the trainer's weights.
    """

    def __init__(
        self,
        channel: Channel,
        learners: LearnerGroup | None,
        training: Crew | None,
        *,
        is_received: bool,
        injection: MismatchInjection,
        seed: int,
    ) -> None:
        self._channel, self._learners, self._training, self._is_received = channel, learners, training, is_received
        self._to_sampler = with_injection(channel, injection, seed=seed)
        self._lock = threading.Lock()
        self._evaluated: int | None = None
        self._oldest = 0
        self.version = 0

    @property
    def trainer(self) -> Weights:
        """The trainer's weights, as they are."""
        return Weights(self._channel, self.version)

    @property
    def sampler(self) -> Weights:
        """What rollout actors sample with: the trainer's weights, unless a mismatch is injected."""
        return Weights(self._to_sampler, max(self._oldest, self._to_sampler.version_to_sample(self.version)))

    def publish_next(self) -> None:
        """The trainer's weights are a new version from now on."""
        self.publish(self.version + 1)

    def publish(self, version: int) -> None:
        """The trainer's weights become `version`; rollout actors get theirs, and what nobody needs any more goes."""
        if self._is_received and self._learners is not None:
            channel = self._channel
            on_learners(self._learners, lambda learner: send_from(learner, channel, version))
        with self._lock:
            self.version = version
        self.bring_up_to_date()
        with self._lock:
            sampled = self.sampler.version
            self._channel.remove_older(sampled if self._evaluated is None else min(sampled, self._evaluated))

    def bring_up_to_date(self) -> None:
        """Gives the rollout actors their configuration and weights, those that don't have them."""
        if self._training is not None:
            self._training.bring_up_to_date(self.sampler)

    def restore_actors(self) -> list[int]:
        """Takes rollout actors back that Ray has restarted, with configuration and weights; returns their ids."""
        return [] if self._training is None else self._training.restore(self.sampler)

    @contextmanager
    def kept_for_evaluation(self) -> Iterator[tuple[Weights, Weights]]:
        """The trainer's and the sampler's weights of now; while this lasts, neither is removed."""
        with self._lock:
            trainer, sampler = self.trainer, self.sampler
            self._evaluated = min(trainer.version, sampler.version)
        try:
            yield trainer, sampler
        finally:
            self._evaluated = None

    def state(self) -> dict[str, Any]:
        """What a run goes on from: the version. JSON-able."""
        return {"weight_version": self.version}

    def restore(self, state: dict[str, Any]) -> None:
        """Publishes the learners' weights, which are back already, as the version that they were.

        Older ones are gone, so with an injected lag actors begin with this version, as a run does with its first, and
        fall behind it from there.
        """
        self._oldest = state["weight_version"]
        self.publish(self._oldest)

    def end(self) -> None:
        """Frees every version: the channel's next run counts from 0 again, and would never come to remove them."""
        if self._is_received:
            # The next one may have been sent, by an update that failed before it counted.
            self._channel.remove_older(self.version + 2)
