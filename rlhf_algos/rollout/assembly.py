"""From finished generations to a RolloutBatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_algos.batch import FINISH_LENGTH, FINISH_STOP, RolloutBatch
from rlhf_algos.rollout.sampling import SamplingSettings
from rlhf_algos.rollout.vllm_engine import Generation

# The total of the recorded head's probabilities may exceed 1 by float error, not by more.
_MASS_TOLERANCE = 1e-4


@dataclass(frozen=True)
class ScoredResponse:
    """One finished episode: who it is, what was sampled, what it earned."""

    sample_id: int
    group_id: int
    generation: Generation
    reward: float
    weight_version: int


def assemble(
    responses: Sequence[ScoredResponse],
    sampling: SamplingSettings,
    *,
    num_experts: int | None,
    settings: dict[str, Any],
) -> RolloutBatch:
    """Packs responses, in the given order, into flat arrays.

    Args:
        responses: finished episodes.
        sampling: what was asked to be recorded; anything missing is an error.
        num_experts: routed experts of the model, which decides the routes' width; None without routes.
        settings: stored with the batch.

    Raises:
        RuntimeError: if the engine recorded something else than asked; names the sample.
    """
    for response in responses:
        _check_record(response, sampling)
    generations = [response.generation for response in responses]
    lengths = np.array([len(g.token_ids) for g in generations], dtype=np.int64)
    head_ids = head_logprobs = None
    if sampling.record_head:
        head_ids = _stack([row for g in generations for row in g.head_ids], np.int32, sampling.record_head)
        head_logprobs = _stack([row for g in generations for row in g.head_logprobs], np.float32, sampling.record_head)
        _check_heads(head_logprobs, responses, lengths)
    routes = None
    if sampling.record_routes:
        dtype = np.uint8 if num_experts is None or num_experts <= 256 else np.uint16
        routes = np.concatenate([_routes(g) for g in generations]).astype(dtype, copy=False)
    support = _supports(generations) if sampling.truncates else {}
    return RolloutBatch(
        sample_ids=np.array([r.sample_id for r in responses], dtype=np.int64),
        group_ids=np.array([r.group_id for r in responses], dtype=np.int64),
        prompt_lengths=np.array([len(g.prompt_ids) for g in generations], dtype=np.int64),
        response_lengths=lengths,
        rewards=np.array([r.reward for r in responses], dtype=np.float32),
        finish_reasons=np.array(
            [FINISH_STOP if g.finish_reason == "stop" else FINISH_LENGTH for g in generations], dtype=np.uint8
        ),
        prompt_ids=_flat([g.prompt_ids for g in generations], np.int64),
        response_ids=_flat([g.token_ids for g in generations], np.int64),
        loss_mask=np.ones(int(lengths.sum()), dtype=np.bool_),
        rollout_logprobs=_flat([g.logprobs for g in generations], np.float32),
        weight_versions=np.repeat(np.array([r.weight_version for r in responses], dtype=np.int64), lengths),
        head_ids=head_ids,
        head_logprobs=head_logprobs,
        routes=routes,
        settings=settings,
        **support,
    )


def _check_record(response: ScoredResponse, sampling: SamplingSettings) -> None:
    generation, tokens = response.generation, len(response.generation.token_ids)
    if len(generation.logprobs) != tokens:
        raise RuntimeError(
            f"Sample {response.sample_id}: vLLM returned {len(generation.logprobs)} log-probabilities "
            f"for {tokens} tokens."
        )
    wants_head = sampling.record_head or sampling.truncates
    if wants_head and len(generation.head_logprobs) != tokens:
        raise RuntimeError(
            f"Sample {response.sample_id}: vLLM returned {len(generation.head_logprobs)} heads for {tokens} tokens."
        )
    if not np.isfinite(generation.logprobs).all():
        place = int(np.flatnonzero(~np.isfinite(generation.logprobs))[0])
        raise RuntimeError(
            f"Sample {response.sample_id}: vLLM returned log-probability {generation.logprobs[place]} for token "
            f"{place} (id {generation.token_ids[place]}); the model's logits are broken. The step was stopped."
        )
    if sampling.record_routes:
        positions = len(generation.prompt_ids) + tokens - 1
        recorded = sum(len(rows) for rows in generation.route_rows)
        if recorded != positions:
            raise RuntimeError(
                f"Sample {response.sample_id}: vLLM returned routes of {recorded} positions, expected {positions} "
                f"({len(generation.prompt_ids)} prompt + {tokens} response tokens, the last is never routed)."
            )


def _check_heads(head_logprobs: np.ndarray, responses: Sequence[ScoredResponse], lengths: np.ndarray) -> None:
    mass = np.exp(head_logprobs.astype(np.float64)).sum(axis=1)
    bad = np.flatnonzero(~(mass <= 1.0 + _MASS_TOLERANCE))
    if len(bad):
        sample = responses[int(np.searchsorted(np.cumsum(lengths), bad[0], side="right"))].sample_id
        raise RuntimeError(
            f"Sample {sample}: the recorded head has probability {mass[bad[0]]:.6f}, above 1; "
            "these are not log-probabilities of the sampled distribution."
        )


def _supports(generations: Sequence[Generation]) -> dict[str, np.ndarray]:
    """The tokens that truncation left, per response token: entries of the head with positive probability."""
    kept = [np.isfinite(row) for g in generations for row in g.head_logprobs]
    ids = [row[keep] for row, keep in zip((r for g in generations for r in g.head_ids), kept, strict=True)]
    return {
        "support_lengths": np.array([len(row) for row in ids], dtype=np.int64),
        "support_ids": np.concatenate(ids).astype(np.int32) if ids else np.zeros(0, np.int32),
    }


def _routes(generation: Generation) -> np.ndarray:
    return np.concatenate(generation.route_rows)


def _stack(rows: list[np.ndarray], dtype: Any, width: int) -> np.ndarray:
    return np.stack(rows).astype(dtype, copy=False) if rows else np.zeros((0, width), dtype)


def _flat(rows: Sequence[Sequence[Any]], dtype: Any) -> np.ndarray:
    return np.array([value for row in rows for value in row], dtype=dtype)
