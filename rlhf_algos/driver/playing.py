"""Having actors that may die play whole groups, or evaluation problems, until all are there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.driver.calls import on_env_runners
from rlhf_algos.driver.source import Rollouts
from rlhf_algos.rollout.scoring_mark import read_mark

#: How often a group is played before its failure is the run's.
TRIES = 2
# Between two looks at actors that are all gone.
_PAUSE_S = 0.2

#: What an actor's call returns: a batch, or None if it played nothing, and the ids whose prompt left no room.
Played = tuple[RolloutBatch | None, list[int]]


@dataclass(frozen=True)
class Actors:
    """The actors that play, and what is done when some of them die.

    Attributes:
        group: RLlib's.
        restore: brings dead actors back, with configuration and weights.
        patience_s: how long to wait with no actor alive.
        marks: path whose name, with an actor's number after it, is the file in which that actor notes the episode
            whose environment is running; None without.
    """

    group: EnvRunnerGroup
    restore: Callable[[], object]
    patience_s: float
    marks: Path | None = None

    def mark_of(self, actor: int) -> Path | None:
        """The file of one actor's mark."""
        return None if self.marks is None else self.marks.with_name(f"{self.marks.name}-{actor}")


def sample_groups(actors: Actors, group_ids: Sequence[int], *, weight_version: int) -> Rollouts:
    """Has the healthy actors play the groups, and plays those of an actor that died again, until all are there.

    Args:
        actors: that play.
        group_ids: what to play; ids decide prompt and noise, so playing one again gives the same samples.
        weight_version: version that every actor must have.

    Raises:
        RuntimeError: if no actor comes back in time, or a group's actor died twice; names the groups.
        ValueError: if no prompt at all fits.
    """

    def play(runner: Any, ids: list[int], mark: Path | None) -> Played:
        return runner.sample_groups(ids, weight_version=weight_version, mark=mark)

    batches, too_long, again = play_all(actors, group_ids, play, what="group")
    if not batches:
        raise ValueError(
            f"None of the {len(group_ids)} prompts of this iteration fits into the model's context; raise "
            "vllm(max_model_len=...) or shorten the prompts."
        )
    return Rollouts(in_order(batches, group_ids), len(too_long), again)


def play_all(
    actors: Actors,
    ids: Sequence[int],
    play: Callable[[Any, list[int], Path | None], Played],
    *,
    what: str,
) -> tuple[list[RolloutBatch], list[int], int]:
    """Shares ids out among the healthy actors until each was played, at most `TRIES` times.

    Args:
        actors: that play.
        ids: of groups or evaluation problems.
        play: called in an actor with the actor, its ids and the file of its mark.
        what: an id stands for, in messages.

    Returns:
        The batches, the ids that were too long, and how many were played again.
    """
    missing, batches, too_long, again = list(ids), [], [], 0
    tries: Counter[int] = Counter()
    last_alive = time.monotonic()
    while missing:
        healthy = actors.group.healthy_env_runner_ids()[: len(missing)]
        if not healthy:
            if time.monotonic() - last_alive > actors.patience_s:
                raise RuntimeError(
                    f"No rollout actor came back within {actors.patience_s:g} s "
                    "(fault_tolerance(env_runner_restore_timeout_s=...))."
                )
            actors.restore()
            time.sleep(_PAUSE_S)
            continue
        last_alive = time.monotonic()
        shares = {actor: missing[place :: len(healthy)] for place, actor in enumerate(healthy)}
        results = on_env_runners(
            actors.group,
            play,
            actors=healthy,
            kwargs_by_actor={actor: {"ids": share, "mark": actors.mark_of(actor)} for actor, share in shares.items()},
        )
        done: set[int] = set()
        for actor, (batch, rejected) in results.items():
            played = set(rejected) | (set() if batch is None else set(batch.group_ids.tolist()))
            if played != set(shares[actor]):
                raise RuntimeError(
                    f"Rollout actor {actor} was to play the {what}s {shares[actor]} and returned {sorted(played)}."
                )
            done |= played
            too_long += rejected
            if batch is not None:
                batches.append(batch)
        for actor in set(healthy) - set(results):
            _count_death(actors, actor, shares[actor], tries, what)
        missing = [each for each in missing if each not in done]
        if missing:
            again += len(missing)
            actors.restore()
    return batches, too_long, again


def in_order(batches: Iterable[RolloutBatch], ids: Sequence[int]) -> RolloutBatch:
    """One batch with the groups in the order asked for, so that results don't depend on which actor was first."""
    batch = RolloutBatch.concatenate(batches)
    rank = {each: place for place, each in enumerate(ids)}
    order = sorted(range(batch.num_samples), key=lambda i: (rank[int(batch.group_ids[i])], int(batch.sample_ids[i])))
    return batch.select(order)


def _count_death(actors: Actors, actor: int, share: Sequence[int], tries: Counter[int], what: str) -> None:
    """Counts a try for the episode that an actor died in, or for all it was playing if nobody knows.

    Raises:
        RuntimeError: if one was tried often enough.
    """
    path = actors.mark_of(actor)
    mark = None if path is None else read_mark(path)
    blamed = [mark.group] if mark is not None and mark.group in share else list(share)
    tries.update(blamed)
    spent = [each for each in blamed if tries[each] >= TRIES]
    if not spent:
        return
    where = f"while it played the {what}s {spent}"
    if mark is not None and mark.group in share:
        where = f"while the environment of sample {mark.sample} of {what} {mark.group} was running"
    raise RuntimeError(
        f"The process of rollout actor {actor} ended {where}, and so it did the time before. The run was stopped "
        f"after {TRIES} tries. Look at what the environment's reset and reward do there: a call of os._exit, a crash "
        "in native code or more memory than there is ends the process without an error that could be caught."
    )
