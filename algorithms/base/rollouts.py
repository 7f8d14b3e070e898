"""Sampling whole groups from actors that may die."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.algorithms.base.remote import on_env_runners
from rlhf_algos.batch import RolloutBatch


@dataclass(frozen=True)
class Rollouts:
    """What an iteration sampled.

    Attributes:
        batch: all groups, in the order they were asked for.
        prompts_too_long: groups that could not be played, because their prompt leaves no room for a response.
        groups_sampled_again: groups whose actor died before it returned them.
    """

    batch: RolloutBatch
    prompts_too_long: int
    groups_sampled_again: int


def sample_groups(
    group: EnvRunnerGroup,
    group_ids: Sequence[int],
    *,
    weight_version: int,
    restore: Callable[[], object],
    patience_s: float,
) -> Rollouts:
    """Has the healthy actors play the groups, and plays those of an actor that died again, until all are there.

    Args:
        group: the actors.
        group_ids: what to play; ids decide prompt and noise, so playing one again gives the same samples.
        weight_version: version that every actor must have.
        restore: brings dead actors back with current weights.
        patience_s: how long to wait with no actor alive.

    Raises:
        RuntimeError: if no actor comes back within `patience_s`.
        ValueError: if no prompt at all fits.
    """
    missing, batches, too_long, again = list(group_ids), [], [], 0
    last_alive = time.monotonic()
    while missing:
        actors = group.healthy_env_runner_ids()
        if not actors:
            if time.monotonic() - last_alive > patience_s:
                raise RuntimeError(
                    f"No rollout actor came back within {patience_s:g} s "
                    "(fault_tolerance(env_runner_restore_timeout_s=...))."
                )
            restore()
            continue
        last_alive = time.monotonic()
        results = on_env_runners(
            group,
            lambda runner, group_ids: runner.sample_groups(group_ids, weight_version=weight_version),
            kwargs_by_actor={actor: {"group_ids": missing[place :: len(actors)]} for place, actor in enumerate(actors)},
        )
        for batch, rejected in results.values():
            too_long += rejected
            if batch is not None:
                batches.append(batch)
        done = set(too_long).union(*(batch.group_ids.tolist() for batch in batches))
        missing = [group_id for group_id in missing if group_id not in done]
        if missing:
            again += len(missing)
            restore()
    if not batches:
        raise ValueError(
            f"None of the {len(group_ids)} prompts of this iteration fits into the model's context; raise "
            "vllm(max_model_len=...) or shorten the prompts."
        )
    return Rollouts(_in_order(batches, group_ids), len(too_long), again)


def _in_order(batches: Sequence[RolloutBatch], group_ids: Sequence[int]) -> RolloutBatch:
    """One batch with the groups in the order asked for, so that results don't depend on which actor was first."""
    batch = RolloutBatch.concatenate(batches)
    rank = {group_id: place for place, group_id in enumerate(group_ids)}
    order = sorted(range(batch.num_samples), key=lambda i: (rank[int(batch.group_ids[i])], int(batch.sample_ids[i])))
    return batch.select(order)
