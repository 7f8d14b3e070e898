"""The parts of the difference between trainer and sampler (MATH 8.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.analysis.compare import learner_for
from rlhf_algos.batch import RolloutBatch
from rlhf_algos.driver.advantages import with_advantages
from rlhf_algos.objectives import finalize_mismatch, mismatch_sums
from rlhf_algos.routing_replay import R3, NoReplay, RouterReplay

_NO_REPLAY = NoReplay()


def decompose_mismatch(
    batch: RolloutBatch,
    *,
    model: str,
    sampler_model: str,
    fraction: float = 1.0,
    seed: int = 0,
    dtype: str = "float32",
) -> dict[str, dict[str, float]]:
    """How much of log p - log q comes from old weights, how much from the engine, and how much of that from routes.

    For the same prefix and token `log p_t - log q_s = (log p_t - log p_s) + (log p_s - log q_s)`: the trainer with its
    weights against the trainer with the sampler's weights (staleness), and that against the engine.

    Args:
        batch: saved; all its tokens must be of one weight version.
        model: the trainer's weights, t.
        sampler_model: the weights that the engine sampled with, s, as the trainer wrote them.
        fraction: of the samples to look at, at least one; chosen by `seed`.
        seed: of the choice.
        dtype: of the trainer.

    Returns:
        For "total", "staleness", "engine" and, if the batch has routes, "engine with routes replayed": the metrics of
        MATH 9, and `mean`, the mean of the difference itself; the means of staleness and engine add up to the total's.

    Raises:
        ValueError: if the fraction is outside (0, 1], or the batch holds several weight versions.
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"fraction must be above 0 and at most 1; got {fraction}.")
    versions = np.unique(batch.weight_versions[batch.loss_mask])
    if len(versions) > 1:
        raise ValueError(f"The batch's tokens are of weight versions {versions.tolist()}; give one version at a time.")
    count = max(1, round(fraction * batch.num_samples))
    chosen = np.sort(np.random.default_rng(seed).permutation(batch.num_samples)[:count])
    batch = with_advantages(batch, ReinforceSCConfig().advantages).select(chosen)
    trainer = _logprobs(batch, model, dtype)
    same_version = _logprobs(batch, sampler_model, dtype)
    engine = torch.from_numpy(batch.rollout_logprobs.copy())
    parts = {
        "total": (trainer, engine),
        "staleness": (trainer, same_version),
        "engine": (same_version, engine),
    }
    if batch.routes is not None:
        parts["engine with routes replayed"] = (_logprobs(batch, sampler_model, dtype, R3()), engine)
    mask = torch.from_numpy(batch.loss_mask.copy())
    return {
        name: {"mean": float((p - q)[mask].double().mean())} | finalize_mismatch(mismatch_sums(p, q, mask))
        for name, (p, q) in parts.items()
    }


def _logprobs(batch: RolloutBatch, model: str, dtype: str, replay: RouterReplay = _NO_REPLAY) -> torch.Tensor:
    """`[T]` float32, the trainer's log-probability of each trained token."""
    learner: Any = learner_for(batch, model=model, dtype=dtype, token_budget=8192)
    return learner.old_logprobs_of(batch, replace(learner.settings, router_replay=replay))
