"""From finished generations to a RolloutBatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_algos.batch import FINISH_LENGTH, FINISH_STOP, RolloutBatch, SampledWith
from rlhf_algos.rollout.engine import Generation
from rlhf_algos.rollout.router_layout import RouterLayout
from rlhf_algos.rollout.sampling import SamplingSettings
from rlhf_algos.routing_replay import moe_layer_routes, route_dtype

# The total of the recorded head's probabilities may exceed 1 by float error, not by more.
_MASS_TOLERANCE = 1e-4
# The same number, read from two places of the engine's record.
_LOGPROB_TOLERANCE = 1e-5


@dataclass(frozen=True)
class ScoredResponse:
    """One finished episode: who it is, what was sampled, what it earned (None if nobody could say)."""

    sample_id: int
    group_id: int
    generation: Generation
    reward: float | None
    weight_version: int


def assemble(
    responses: Sequence[ScoredResponse],
    sampling: SamplingSettings,
    *,
    router: RouterLayout | None,
    settings: SampledWith | None,
) -> RolloutBatch:
    """Packs responses, in the given order, into flat arrays.

    Args:
        responses: finished episodes.
        sampling: what was asked to be recorded; anything missing is an error.
        router: where the engine's routes stand; None without routes.
        settings: stored with the batch.

    Raises:
        RuntimeError: if the engine recorded something else than asked; names the sample.
    """
    for response in responses:
        _check_record(response, sampling)
        if response.generation.head_ids:
            _check_distribution(response, sampling)
    generations = [response.generation for response in responses]
    lengths = np.array([len(g.token_ids) for g in generations], dtype=np.int64)
    head_ids = head_logprobs = None
    if sampling.record_head:
        head_ids = _stack([row for g in generations for row in g.head_ids], np.int32, sampling.record_head)
        head_logprobs = _stack([row for g in generations for row in g.head_logprobs], np.float32, sampling.record_head)
    routes = None
    if sampling.record_routes:
        assert router is not None
        recorded = moe_layer_routes(
            np.concatenate([rows for g in generations for rows in g.route_rows]),
            router.moe_layers,
            router.num_decoder_layers,
        )
        routes = recorded.astype(route_dtype(router.num_experts), copy=False)
    support = _supports(generations) if sampling.truncates else {}
    return RolloutBatch(
        sample_ids=np.array([r.sample_id for r in responses], dtype=np.int64),
        group_ids=np.array([r.group_id for r in responses], dtype=np.int64),
        prompt_lengths=np.array([len(g.prompt_ids) for g in generations], dtype=np.int64),
        response_lengths=lengths,
        rewards=np.array([np.nan if r.reward is None else r.reward for r in responses], dtype=np.float64),
        finish_reasons=np.array(
            [FINISH_STOP if g.finish_reason == "stop" else FINISH_LENGTH for g in generations], dtype=np.uint8
        ),
        prompt_ids=_flat([g.prompt_ids for g in generations], np.int64),
        response_ids=_flat([g.token_ids for g in generations], np.int64),
        # A response without a reward is not trained on.
        loss_mask=np.repeat(np.array([r.reward is not None for r in responses], dtype=bool), lengths),
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


def _check_distribution(response: ScoredResponse, sampling: SamplingSettings) -> None:
    """Raises unless every recorded head or support is (part of) the distribution that the token was sampled from.

    A head must be sorted, of mass at most 1, and agree with the sampled token's log q; a support must hold the sampled
    token and have mass 1. Anything else (raw log-probabilities, another temperature, a penalty applied on one side)
    would make every correction wrong while training went on.
    """
    generation = response.generation
    ids = np.stack(generation.head_ids)
    logprobs = np.stack(generation.head_logprobs).astype(np.float64)
    token_ids = np.array(generation.token_ids)[:, None]
    sampled = np.array(generation.logprobs, dtype=np.float64)[:, None]

    def refuse(places: Any, fault: str) -> None:
        rows = np.flatnonzero(places)
        if len(rows):
            raise RuntimeError(
                f"Sample {response.sample_id}, token {rows[0]} (id {generation.token_ids[rows[0]]}): {fault}. The "
                "record is not the distribution that was sampled from, so the step was stopped."
            )

    mass: np.ndarray = np.exp(logprobs).sum(axis=1)
    refuse(np.isnan(logprobs).any(axis=1), "the recorded distribution holds NaN")
    refuse((logprobs[:, 1:] > logprobs[:, :-1] + _LOGPROB_TOLERANCE).any(axis=1), "the recorded head is not sorted")
    refuse(mass > 1.0 + _MASS_TOLERANCE, f"the recorded probabilities add up to {mass.max():.6f}, above 1")
    is_sampled = ids == token_ids
    agree = np.abs(logprobs - sampled) <= _LOGPROB_TOLERANCE
    refuse((is_sampled & ~agree).any(axis=1), "its own log q differs from the one in the recorded distribution")
    if sampling.truncates:
        refuse(~is_sampled.any(axis=1), "it is missing from the support that it was sampled from")
        refuse(mass < 1.0 - _MASS_TOLERANCE, f"the support's probabilities add up to {mass.min():.6f} only")
    else:
        above_head = sampled[:, 0] > logprobs[:, -1] + _LOGPROB_TOLERANCE
        refuse(~is_sampled.any(axis=1) & above_head, "it is likelier than the head's last entry but not in the head")


def _supports(generations: Sequence[Generation]) -> dict[str, np.ndarray]:
    """The tokens that truncation left, per response token: entries of the head with positive probability."""
    rows = [(ids, logprobs) for g in generations for ids, logprobs in zip(g.head_ids, g.head_logprobs, strict=True)]
    kept = [(ids[np.isfinite(logprobs)], logprobs[np.isfinite(logprobs)]) for ids, logprobs in rows]
    return {
        "support_lengths": np.array([len(ids) for ids, _ in kept], dtype=np.int64),
        "support_ids": np.concatenate([np.zeros(0), *(ids for ids, _ in kept)]).astype(np.int32),
        "support_logprobs": np.concatenate([np.zeros(0), *(logprobs for _, logprobs in kept)]).astype(np.float32),
    }


def _stack(rows: list[np.ndarray], dtype: Any, width: int) -> np.ndarray:
    return np.stack(rows).astype(dtype, copy=False) if rows else np.zeros((0, width), dtype)


def _flat(rows: Sequence[Sequence[Any]], dtype: Any) -> np.ndarray:
    return np.array([value for row in rows for value in row], dtype=dtype)
