"""From a RolloutBatch to micro-batches of packed sequences, the same number on every rank.

The plan is a pure function of the batch, the number of ranks and the token budget. Every rank computes the
whole plan and takes its own part, so no communication is needed to agree on the number of collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.routing_replay import packed_routes


def plan_micro_batches(lengths: np.ndarray, *, num_ranks: int, token_budget: int) -> list[list[list[int]]]:
    """Assigns samples to ranks and micro-batches.

    Samples are taken longest first and given to the rank with the fewest tokens so far, then each rank fills
    micro-batches of at most `token_budget` tokens. A sample longer than the budget gets a micro-batch of its
    own. Ranks with fewer micro-batches than others get empty ones at the end (they run a dummy sequence with
    loss 0), so that all ranks take part in the same collectives.

    Args:
        lengths: `[n]`, tokens of each sample to be trained; at least 1 each.
        num_ranks: learner ranks.
        token_budget: tokens a micro-batch may hold.

    Returns:
        `plan[rank][micro_batch]` = indices into `lengths`. Each index occurs once.

    Raises:
        ValueError: if `token_budget` or `num_ranks` is below 1.
    """
    if token_budget < 1 or num_ranks < 1:
        raise ValueError(f"token_budget and num_ranks must be at least 1, got {token_budget} and {num_ranks}.")
    # Stable, so that equal lengths keep the batch's order and the plan is reproducible.
    longest_first = np.argsort(-np.asarray(lengths), kind="stable")
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for index in longest_first.tolist():
        rank = load.index(min(load))
        ranks[rank].append(index)
        load[rank] += int(lengths[index])

    plan: list[list[list[int]]] = []
    for samples in ranks:
        micro_batches: list[list[int]] = []
        tokens = 0
        for index in samples:
            if not micro_batches or tokens + int(lengths[index]) > token_budget:
                micro_batches.append([])
                tokens = 0
            micro_batches[-1].append(index)
            tokens += int(lengths[index])
        plan.append(micro_batches)
    most = max(len(micro_batches) for micro_batches in plan)
    for micro_batches in plan:
        micro_batches.extend([] for _ in range(most - len(micro_batches)))
    return plan


@dataclass(frozen=True)
class PackedSequences:
    """Sequences one after another, without padding, and where their response tokens are predicted.

    Attributes:
        input_ids: `[N]` int64, prompt and response tokens of all sequences.
        position_ids: `[N]` int64, starting at 0 in each sequence.
        lengths: `[S]` int64, tokens per sequence, with sum N.
        predicting: `[T]` int64, for each response token the row of `input_ids` *before* it: the hidden state
            that predicts it.
        targets: `[T]` int64, the response tokens.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    lengths: torch.Tensor
    predicting: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass trains on. All `[T]` tensors are over its response tokens.

    Attributes:
        sequences: the packed tokens.
        rows: `[T]` int64, where each token stands in the optimizer batch.
        sample_ids: `[T]` int64, the sample that each token belongs to.
        packed_sample_ids: `[S]` int64, the sample of each packed sequence.
        loss_mask: `[T]` bool.
        loss_weights: `[T]` float32, the reduction of MATH 4 as one weight per token.
        advantages: `[T]` float32.
        rollout_logprobs: `[T]` float32, log q.
        head_ids, head_logprobs: `[T, k]` or None.
        support_ids: `[T, largest support]` int64, the tokens that truncated sampling chose from, filled up with the
            sampled token; None if the full distribution was sampled from.
        support_mask: `[T, largest support]` bool, False where `support_ids` is filled up.
        support_logprobs: `[T, largest support]` float32, their log q, -inf where filled up.
        routes: `[N, L, E]` int64, recorded experts of every packed token, -1 at the last position of a sequence; None
            if they are not needed.
        old_logprobs: `[T]` float32, log p0; None if the current pass is the old-policy pass.
        is_dummy: True for a pass that only keeps the collectives in step; all its masks are False.
    """

    sequences: PackedSequences
    rows: torch.Tensor
    sample_ids: torch.Tensor
    packed_sample_ids: torch.Tensor
    loss_mask: torch.Tensor
    loss_weights: torch.Tensor
    advantages: torch.Tensor
    rollout_logprobs: torch.Tensor
    head_ids: torch.Tensor | None = None
    head_logprobs: torch.Tensor | None = None
    support_ids: torch.Tensor | None = None
    support_mask: torch.Tensor | None = None
    support_logprobs: torch.Tensor | None = None
    routes: torch.Tensor | None = None
    old_logprobs: torch.Tensor | None = None
    is_dummy: bool = False


def as_tensor(array: np.ndarray, device: torch.device | None = None) -> torch.Tensor:
    """A tensor with its own memory: arrays that come out of Ray's object store are shared and read-only."""
    return torch.from_numpy(np.array(array)).to(device)


def pack_sequences(batch: RolloutBatch, device: torch.device | None = None) -> PackedSequences:
    """Packs prompt and response of every sample, in the batch's order.

    Alignment: with prompt `a b` and response `c d`, the input is `a b c d` and

        row         0  1  2  3
        input_ids   a  b  c  d
        predicts    b  c  d  -      predicting = [1, 2], targets = [c, d]
    """
    lengths = batch.prompt_lengths + batch.response_lengths
    starts = np.cumsum(lengths) - lengths
    within = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    is_prompt = within < np.repeat(batch.prompt_lengths, lengths)
    input_ids = np.empty(int(lengths.sum()), dtype=np.int64)
    input_ids[is_prompt] = batch.prompt_ids
    input_ids[~is_prompt] = batch.response_ids
    predicting = np.flatnonzero(~is_prompt) - 1
    return PackedSequences(
        input_ids=as_tensor(input_ids, device),
        position_ids=as_tensor(within, device),
        lengths=as_tensor(lengths, device),
        predicting=as_tensor(predicting, device),
        targets=as_tensor(batch.response_ids, device),
    )


def make_micro_batch(
    batch: RolloutBatch,
    *,
    rows: torch.Tensor,
    loss_weights: torch.Tensor,
    old_logprobs: torch.Tensor | None = None,
    with_head: bool = False,
    routed_experts: int | None = None,
    is_dummy: bool = False,
    device: torch.device | None = None,
) -> MicroBatch:
    """Turns selected samples into tensors; `rows`, `loss_weights`, `old_logprobs` are `[T]` in the batch's order.

    With `routed_experts`, the number of experts to choose from, recorded routes come along.
    """
    if batch.advantages is None:
        raise ValueError("The batch has no advantages; the algorithm computes them before the learner's update.")
    token_sample = batch.token_sample_index
    mask = np.zeros_like(batch.loss_mask) if is_dummy else batch.loss_mask
    tensor = partial(as_tensor, device=device)
    support_ids, support_mask, support_logprobs = _padded_support(batch)
    return MicroBatch(
        sequences=pack_sequences(batch, device),
        rows=rows.to(device),
        sample_ids=tensor(batch.sample_ids[token_sample]),
        packed_sample_ids=tensor(batch.sample_ids),
        loss_mask=tensor(mask),
        loss_weights=(torch.zeros_like(loss_weights) if is_dummy else loss_weights).to(device),
        advantages=tensor(batch.advantages[token_sample]),
        rollout_logprobs=tensor(_where_trained(batch.rollout_logprobs, mask)),
        head_ids=tensor(batch.head_ids.astype(np.int64)) if with_head and batch.head_ids is not None else None,
        head_logprobs=tensor(_where_trained(batch.head_logprobs, mask))
        if with_head and batch.head_logprobs is not None
        else None,
        support_ids=None if support_ids is None else tensor(support_ids),
        support_mask=None if support_mask is None else tensor(support_mask),
        support_logprobs=None if support_logprobs is None else tensor(_where_trained(support_logprobs, mask)),
        routes=None
        if routed_experts is None or batch.routes is None
        else packed_routes(batch, num_experts=routed_experts, device=device),
        old_logprobs=None if old_logprobs is None else old_logprobs.to(device),
        is_dummy=is_dummy,
    )


def _where_trained(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`values` on trained tokens, 0 elsewhere: what stands there may be anything and is never read.

    A zero weight in the loss is not enough: 0 times NaN is NaN in the backward pass.
    """
    return np.where(mask.reshape(-1, *[1] * (values.ndim - 1)), values, np.zeros((), values.dtype))


def _padded_support(batch: RolloutBatch) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """The ragged supports as a rectangle of ids, where it is real, and its log q."""
    if batch.support_lengths is None or batch.support_ids is None or batch.support_logprobs is None:
        return None, None, None
    widest = int(batch.support_lengths.max(initial=1))
    mask = np.arange(widest) < batch.support_lengths[:, None]
    ids = np.repeat(batch.response_ids[:, None], widest, axis=1)
    ids[mask] = batch.support_ids
    logprobs = np.full(mask.shape, -np.inf, dtype=np.float32)
    logprobs[mask] = batch.support_logprobs
    return ids, mask, logprobs
