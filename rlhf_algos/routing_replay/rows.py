"""Rows of routes and the tokens they belong to.

A sequence of n tokens has recorded routes of its positions 0 .. n-2: nothing is routed after its last token (MATH 6.4).

    prompt a b c, response d e        position   0  1  2  3  4
                                      token      a  b  c  d  e
                                      routes     r0 r1 r2 r3 -      the hidden state that predicts e used r3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch


def route_dtype(num_experts: int) -> np.dtype[Any]:
    """The dtype that routes are stored in: uint8 up to 256 experts, uint16 above."""
    if not 1 <= num_experts <= 65536:
        raise ValueError(f"num_experts must lie in [1, 65536], got {num_experts}.")
    return np.dtype(np.uint8 if num_experts <= 256 else np.uint16)


def join_routes(legs: Sequence[np.ndarray]) -> np.ndarray:
    """The routes of one sequence that was generated in several requests: turns of an episode, or a resumed response.

    Each later request had all earlier tokens in its prompt, so it returns rows from position 0 on. Of each position the
    *first* recorded row is kept: it is the one that was used when the tokens after it were sampled. A later leg adds
    what the earlier ones lack, its own tokens and the last position of the leg before.

    Args:
        legs: in the order of the requests, each `[positions, L, E]` from position 0 on.

    Returns:
        `[positions of the last leg, L, E]`.

    Raises:
        ValueError: no leg, legs of different shape or dtype, or a later leg that is shorter than an earlier one.
    """
    if not legs:
        raise ValueError("join_routes needs the routes of at least one request.")
    joined = _three_dimensional(legs[0])
    for number, leg in enumerate(legs[1:], start=2):
        if leg.shape[1:] != joined.shape[1:] or leg.dtype != joined.dtype:
            raise ValueError(
                f"Routes of request {number} have rows {leg.shape[1:]} of {leg.dtype}, those before {joined.shape[1:]} "
                f"of {joined.dtype}: these are not requests to one model."
            )
        if len(leg) < len(joined):
            raise ValueError(
                f"Routes of request {number} cover {len(leg)} positions, fewer than the {len(joined)} before it: its "
                "prompt does not contain the earlier tokens, so it is another sequence."
            )
        joined = np.concatenate([joined, leg[len(joined) :]])
    return joined


def packed_routes(
    batch: RolloutBatch, *, num_experts: int | None = None, device: torch.device | None = None
) -> torch.Tensor:
    """The routes of a batch, one row per packed token, in the order in which `pack_sequences` packs its samples.

    With samples of 3 and 2 tokens

        row       0   1   2   3   4
        routes    a0  a1  -1  b0  -1

    Args:
        batch: with recorded routes.
        num_experts: of each layer, to have ids outside of it named with their sample; not checked if None.
        device: of the result.

    Returns:
        `[N, L, E]` int64 with N = P + T; -1 at the last position of each sample.

    Raises:
        ValueError: the batch has no routes, or a row that can't have been recorded (an expert twice, or one that does
            not exist). Names the sample and the position.
    """
    lengths = batch.prompt_lengths + batch.response_lengths
    if batch.routes is None:
        trained = batch.token_sample_index[batch.loss_mask]
        sample = int(batch.sample_ids[trained[0]]) if len(trained) else "none"
        raise ValueError(
            f"The batch has no routes, but they are to be replayed (first sample with trained tokens: {sample}). "
            "Have the rollout actors record routes, or set router_replay='none' or 'r2'."
        )
    _refuse_unrecorded(batch, lengths, num_experts)
    rows = np.full((int(lengths.sum()), *batch.routes.shape[1:]), -1, dtype=np.int64)
    has_route = np.ones(len(rows), dtype=np.bool_)
    has_route[np.cumsum(lengths) - 1] = False
    rows[has_route] = batch.routes
    return torch.from_numpy(rows).to(device)


def _refuse_unrecorded(batch: RolloutBatch, lengths: np.ndarray, num_experts: int | None) -> None:
    assert batch.routes is not None
    ordered = np.sort(batch.routes, axis=-1)
    # An engine's buffer starts as zeros; a row that was never written repeats expert 0.
    bad = (ordered[..., 1:] == ordered[..., :-1]).any(axis=-1)
    if num_experts is not None:
        bad |= ordered[..., -1] >= num_experts
    if not bad.any():
        return
    row, layer = (int(index[0]) for index in np.nonzero(bad))
    starts = np.cumsum(lengths - 1) - (lengths - 1)
    sample = int(np.searchsorted(starts, row, side="right")) - 1
    position = row - int(starts[sample])
    response = position - int(batch.prompt_lengths[sample])
    place = f"response token {response}" if response >= 0 else "in the prompt"
    raise ValueError(
        f"Sample {int(batch.sample_ids[sample])} has no valid route at position {position} ({place}), layer {layer}: "
        f"experts {batch.routes[row, layer].tolist()}"
        + (f" of {num_experts}" if num_experts is not None else "")
        + ". The engine did not record this position; a token can't be trained on with a route that was never taken."
    )


def _three_dimensional(routes: np.ndarray) -> np.ndarray:
    if routes.ndim != 3:
        raise ValueError(f"Routes have shape [positions, layers, experts], got {routes.shape}.")
    return routes
