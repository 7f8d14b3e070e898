"""Batches that rollout actors sample, all with the weights that hold when they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_algos.driver.calls import on_env_runners
from rlhf_algos.driver.crew import Crew
from rlhf_algos.driver.playing import Actors, sample_groups
from rlhf_algos.driver.publication import Publication
from rlhf_algos.driver.source import BatchSource, Rollouts, SplitFacts


class LiveSource(BatchSource):
    """Asks actors for groups by their ids, which count on through a run; an id decides prompts and noise.

    Args:
        crew: that samples.
        publication: of the weights that it samples with.
        prompts_per_iteration: groups in a batch.
        patience_s: how long to wait with no actor alive.
        marks: path and first part of the name of the files in which actors note the running episode.
    """

    def __init__(
        self, crew: Crew, publication: Publication, *, prompts_per_iteration: int, patience_s: float, marks: Path
    ) -> None:
        self._crew, self._publication, self._size = crew, publication, prompts_per_iteration
        self._actors = Actors(crew.group, publication.restore_actors, patience_s, marks)
        self._next_group = 0
        self._splits: list[SplitFacts] | None = None

    def next(self, version: int) -> Rollouts:
        """The next groups, sampled with the weights that the publication gives actors while the trainer has `version`.

        Raises:
            RuntimeError: if no actor comes back in time, or a group's actor died twice; names the groups.
            ValueError: if no prompt at all fits.
        """
        groups = range(self._next_group, self._next_group + self._size)
        # They are not asked for again if this fails.
        self._next_group = groups.stop
        self._publication.bring_up_to_date()
        return sample_groups(self._actors, groups, weight_version=self._publication.sampler.version)

    def splits(self) -> list[SplitFacts]:
        """Of the training environment as the actors have it.

        Asked once: beside training, an actor would answer after its whole sample. With no actor to ask, nothing is
        known, and so nothing is called held out.
        """
        if self._splits is None:
            answers = on_env_runners(self._crew.group, lambda runner: runner.split_drawn())
            self._splits = list(answers.values()) or [{}]
        return self._splits

    def state(self) -> dict[str, Any]:
        """The id of the next group."""
        return {"next_group": self._next_group}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on with that group."""
        self._next_group = state["next_group"]
