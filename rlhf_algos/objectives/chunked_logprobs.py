"""Log-probabilities straight from hidden states, without ever holding `[T, V]` logits."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf_algos.objectives._checks import require_dtype, require_flat, require_range, require_rank
from rlhf_algos.objectives.chunked_projection import (
    ChunkedProjection,
    ProjectionGradients,
    ProjectionSettings,
)

FLOATING_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Measured with benchmarks/chunked_logprobs.py: smaller chunks cost matrix-product speed, larger ones only
# memory.
LOGITS_BUDGET = 16 * 2**20  # elements of one chunk of logits: 64 MiB in float32
MIN_CHUNK_SIZE = 128


class ChunkedLogprobs(NamedTuple):
    """Result of `chunked_logprobs`; float32 (float64 for float64 inputs)."""

    logprobs: Tensor  # [T] of the targets
    head_logprobs: Tensor | None  # [T, k] of head_ids
    entropy: Tensor | None  # [T] of the full distribution


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    head_ids: Tensor | None = None,
    with_entropy: bool = False,
    chunk_size: int | None = None,
) -> ChunkedLogprobs:
    """Log-probabilities of given tokens under `softmax((hidden @ weight.T + bias) / temperature)`.

    With `x_v = (h . W_v + b_v) / temperature` and `L = logsumexp_v x_v` over the full vocabulary, the
    distribution of MATH 1::

        logprobs_t      = x_{target_t} - L_t
        head_logprobs   = x_{head_ids} - L_t         head of MATH 7.5
        entropy_t       = -sum_v p_v log p_v

    Forward and backward both walk over slices of the vocabulary; logits are computed twice, and kept never.
    What is saved for the backward pass is the inputs and `L` (and the entropy), all of size `[T, H]`,
    `[V, H]` or less. Vocabulary slices rather than token slices: each row of the weight's gradient is then
    written once, not summed over slices, so that it needs no float32 copy when the weight is bfloat16.

    Matrix products run in the inputs' dtype and everything after them in float32 (float64 for float64). On a
    CPU without bfloat16 instructions, where such products are some 40 times slower, a slice is made float32
    before.

    Args:
        hidden: `[T, H]` float32, float64, bfloat16 or float16. `T = 0` is allowed.
        weight: `[V, H]`, dtype of `hidden`: the language-model head. May be a parameter whose `.data`
            is re-pointed between forward and backward, as DeepSpeed ZeRO-3 does.
        targets: `[T]` int64 in `[0, V)`: the sampled tokens. `-100` is refused: drop such positions
            before.
        temperature: that of the sampler; positive.
        bias: `[V]`, dtype of `hidden`.
        head_ids: `[T, k]` int64 in `[0, V)`; may repeat a token.
        with_entropy: also return the entropy.
        chunk_size: vocabulary entries per slice; by default 64 MiB of float32 logits. It changes time and
            memory, and the result only by rounding. All logits must be finite.

    Returns:
        `ChunkedLogprobs`: `logprobs` `[T]`, `head_logprobs` `[T, k]` or None, `entropy`
        `[T]` or None; float32, or float64 for float64 inputs.

    Gradient: through `hidden`, `weight` and `bias`, from all three results; computed only where
        required, in
    the dtype of each input. With `g`, `g_j` and `e` the gradients of target, head entries and entropy
    `S`: `dx_v = g 1{v = target} + sum_j g_j 1{v = head_j} - p_v (g + sum_j g_j) - e p_v (log p_v + S)`.
    It can't be differentiated twice.

    Raises:
        TypeError: wrong dtype, or `hidden` and `weight` (or `bias`) of different dtypes.
        ValueError: wrong rank or shape, a temperature or chunk size that is not positive.
        IndexError: a target or head id outside `[0, V)`.
    """
    _check_projection(hidden, weight, bias)
    _check_ids(targets, head_ids, *hidden.shape[:1], vocabulary=weight.shape[0])
    if not 0.0 < temperature < math.inf:
        raise ValueError(f"temperature must be finite and positive; got {temperature}")
    if chunk_size is None:
        chunk_size = max(MIN_CHUNK_SIZE, LOGITS_BUDGET // max(1, hidden.shape[0]))
    elif chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1; got {chunk_size}")
    settings = ProjectionSettings(float(temperature), chunk_size)
    return ChunkedLogprobs(*_ChunkedLogprobs.apply(hidden, weight, bias, targets, head_ids, with_entropy, settings))


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        head_ids: Tensor | None,
        with_entropy: bool,
        settings: ProjectionSettings,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        with torch.autocast(hidden.device.type, enabled=False):
            logits = ChunkedProjection(hidden, weight, bias, settings)
            chosen = torch.empty(targets.shape, dtype=logits.dtype, device=hidden.device)
            head = None if head_ids is None else chosen.new_empty(head_ids.shape)
            chunk_lse, chunk_entropy = [], []
            for start, chunk in logits.walk():
                _gather_into(chosen[:, None], chunk, targets[:, None], start, logits.is_whole)
                if head is not None and head_ids is not None:
                    _gather_into(head, chunk, head_ids, start, logits.is_whole)
                lse, entropy = _logsumexp_in_place(chunk, with_entropy)
                chunk_lse.append(lse)
                chunk_entropy.append(entropy)
            lse, entropy = _combine_chunks(chunk_lse, chunk_entropy)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets, head_ids, lse, entropy)
        return chosen.sub_(lse), None if head is None else head.sub_(lse[:, None]), entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_head: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, head_ids, lse, entropy = ctx.saved_tensors
        if grad is None and grad_head is None and grad_entropy is None:
            return (None,) * 7
        with torch.autocast(hidden.device.type, enabled=False):
            logits = ChunkedProjection(hidden, weight, bias, ctx.settings)
            sums = ProjectionGradients(logits, *ctx.needs_input_grad[:3])
            upstream = _Upstream(targets, head_ids, grad, grad_head, grad_entropy, lse, entropy)
            for start, chunk in logits.walk():
                _to_gradient_in_place(chunk, start, logits.is_whole, upstream)
                sums.add(start, chunk)
            return (*sums.finish(), None, None, None, None)


class _Upstream(NamedTuple):
    targets: Tensor
    head_ids: Tensor | None
    grad: Tensor | None
    grad_head: Tensor | None
    grad_entropy: Tensor | None
    lse: Tensor
    entropy: Tensor | None

    def total(self) -> Tensor | None:
        """`[T]`: factor of `-p_v`, the gradient that all chosen entries send through the logsumexp."""
        head = None if self.grad_head is None else self.grad_head.sum(1)
        if self.grad is None or head is None:
            return head if self.grad is None else self.grad
        return self.grad + head


def _to_gradient_in_place(chunk: Tensor, start: int, whole: bool, upstream: _Upstream) -> None:
    """Turn tempered logits `[T, slice]` into their gradient, in the memory of the logits."""
    log_probability = chunk.sub_(upstream.lse[:, None])
    total = upstream.total()
    if upstream.grad_entropy is None or upstream.entropy is None:
        assert total is not None
        chunk.exp_().mul_(-total[:, None])
    else:
        probability = log_probability.exp()
        chunk.add_(upstream.entropy[:, None]).mul_(-upstream.grad_entropy[:, None])
        if total is not None:
            chunk.sub_(total[:, None])
        chunk.mul_(probability)
    if upstream.grad is not None:
        _scatter_add(chunk, upstream.targets[:, None], upstream.grad[:, None], start, whole)
    if upstream.grad_head is not None and upstream.head_ids is not None:
        _scatter_add(chunk, upstream.head_ids, upstream.grad_head, start, whole)


def _logsumexp_in_place(chunk: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    """`[T]` logsumexp and entropy of the distribution within the chunk, whose memory is overwritten."""
    highest = chunk.amax(1)
    chunk.sub_(highest[:, None])
    if not with_entropy:
        return chunk.exp_().sum(1).log_().add_(highest), None
    weights = chunk.exp()
    total = weights.sum(1)
    lse = total.log()
    entropy = lse - weights.mul_(chunk).sum(1) / total
    return lse + highest, entropy


def _combine_chunks(chunk_lse: list[Tensor], chunk_entropy: list[Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """Totals over chunks; entropy by its chain rule: that of the choice of chunk, plus the mean within."""
    within = [entropy for entropy in chunk_entropy if entropy is not None]
    if len(chunk_lse) == 1:
        return chunk_lse[0], within[0] if within else None
    stacked = torch.stack(chunk_lse)
    lse = stacked.logsumexp(0)
    if not within:
        return lse, None
    log_share = stacked - lse
    return lse, (log_share.exp() * (torch.stack(within) - log_share)).sum(0)


def _gather_into(result: Tensor, chunk: Tensor, ids: Tensor, start: int, whole: bool) -> None:
    """Copy `chunk` at those `ids` that lie in it into `result`, both `[T, k]`."""
    if whole:
        torch.gather(chunk, 1, ids, out=result)
        return
    local, inside = _local_ids(ids, start, chunk.shape[1])
    torch.where(inside, chunk.gather(1, local), result, out=result)


def _scatter_add(chunk: Tensor, ids: Tensor, values: Tensor, start: int, whole: bool) -> None:
    """Add `values` to `chunk` at those `ids` that lie in it, both `[T, k]`."""
    if whole:
        chunk.scatter_add_(1, ids, values)
        return
    local, inside = _local_ids(ids, start, chunk.shape[1])
    chunk.scatter_add_(1, local, torch.where(inside, values, 0.0))


def _local_ids(ids: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    local = ids - start
    inside = (local >= 0) & (local < size)
    return local.clamp_(0, size - 1), inside


def _check_projection(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    require_rank("hidden", hidden, 2)
    require_rank("weight", weight, 2)
    require_dtype("hidden", hidden, FLOATING_DTYPES)
    if weight.dtype != hidden.dtype:
        raise TypeError(f"hidden and weight must have one dtype; got {hidden.dtype} and {weight.dtype}")
    if weight.shape[1] != hidden.shape[1] or weight.shape[0] == 0:
        raise ValueError(f"weight must have shape [V, {hidden.shape[1]}] with V > 0; got {tuple(weight.shape)}")
    if bias is not None:
        if bias.dtype != hidden.dtype:
            raise TypeError(f"hidden and bias must have one dtype; got {hidden.dtype} and {bias.dtype}")
        if bias.shape != weight.shape[:1]:
            raise ValueError(f"bias must have shape {tuple(weight.shape[:1])}; got {tuple(bias.shape)}")


def _check_ids(targets: Tensor, head_ids: Tensor | None, tokens: int, *, vocabulary: int) -> None:
    require_flat("targets", targets, (torch.int64,))
    if targets.shape[0] != tokens:
        raise ValueError(f"targets must have shape ({tokens},), one for each row of hidden; got {tuple(targets.shape)}")
    require_range("targets", targets, vocabulary)
    if head_ids is not None:
        require_rank("head_ids", head_ids, 2)
        require_dtype("head_ids", head_ids, (torch.int64,))
        if head_ids.shape[0] != tokens:
            raise ValueError(f"head_ids must have shape ({tokens}, k); got {tuple(head_ids.shape)}")
        require_range("head_ids", head_ids, vocabulary)
