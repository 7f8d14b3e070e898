"""From per-token losses to the scalar of one optimizer step (MATH 4)."""

from typing import Literal

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_flat, require_range, require_same_shape

ReductionMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
REDUCTION_MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def loss_weights(
    loss_mask: Tensor,
    sample_ids: Tensor,
    num_samples: int,
    *,
    mode: ReductionMode,
    fixed_length: int | None = None,
) -> Tensor:
    """The factor with which each token's loss enters the scalar of the whole optimizer batch.

    Called once on the whole batch, before it is split over learner ranks and micro-batches; the weights then
    travel with the tokens, and the scalar is the plain sum of `weight * loss` over all of them. No later
    denominator exists, so the split cannot change the gradient (4.2). With `n_i` trained tokens in response
    `i`, `N` their sum and `M` the number of responses with `n_i > 0`, a trained token of `i` gets
    (4.1)::

        token-mean                 1 / N
        seq-mean-token-mean        1 / (n_i M)
        seq-mean-token-sum         1 / M
        seq-mean-token-sum-norm    1 / (fixed_length M)

    and every other token 0. A response without a trained token adds nothing, neither to the sum nor to `M`.
    Tokens that a corrector zeroes are trained tokens and stay in the denominator (4.3). seq-mean-token-mean:
    https://arxiv.org/abs/2402.03300; token-mean: https://arxiv.org/abs/2503.14476; seq-mean-token-sum-norm:
    https://arxiv.org/abs/2503.20783.

    Args:
        loss_mask: `[T]` bool, the trained tokens of the whole optimizer batch.
        sample_ids: `[T]` int64, response of each token, in `[0, num_samples)`; any order.
        num_samples: number of responses of the batch, those without any token included.
        mode: one of the four names.
        fixed_length: constant divisor of seq-mean-token-sum-norm, for example the longest allowed response;
            required there and refused elsewhere.

    Returns:
        `[T]` float32; all 0 if nothing is trained, never NaN.

    Gradient: none.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, unknown mode, `fixed_length` missing, out of place or below 1.
        IndexError: a sample id outside `[0, num_samples)`.
    """
    require_flat("loss_mask", loss_mask, (torch.bool,))
    require_flat("sample_ids", sample_ids, (torch.int64,))
    require_same_shape(loss_mask=loss_mask, sample_ids=sample_ids)
    require_range("sample_ids", sample_ids, num_samples)
    _check_mode(mode, fixed_length)

    trained = torch.bincount(sample_ids[loss_mask], minlength=num_samples).double()  # [num_samples]
    responses = (trained > 0).sum().double()
    if mode == "token-mean":
        denominator = trained.sum().expand_as(trained)
    elif mode == "seq-mean-token-mean":
        denominator = trained * responses
    elif mode == "seq-mean-token-sum":
        denominator = responses.expand_as(trained)
    else:
        denominator = (responses * float(fixed_length or 0)).expand_as(trained)
    # Untrained tokens may belong to a response with denominator 0: choose, never multiply 0 by infinity.
    weights = torch.where(loss_mask, 1.0 / denominator[sample_ids], 0.0)
    return weights.float()


def reduce_loss(per_token_loss: Tensor, weights: Tensor) -> Tensor:
    """This part's share of the batch's loss: `sum_t weight_t loss_t` (4.1).

    Add the results (and the gradients) of all micro-batches and ranks; do not average them. A framework that
    averages gradients over ranks must be undone by multiplying with their number.

    Args:
        per_token_loss: `[T]` float32 or float64.
        weights: `[T]` float32 or float64, the slice of `loss_weights` for these tokens.

    Returns:
        Scalar, dtype of `per_token_loss`; 0 with zero gradient if no token of this part is trained.

    Gradient: `weights` with respect to `per_token_loss`; exactly 0 where the weight is 0, whatever stands
        there.
    Garbage in the *inputs* of a loss must be selected away before it (`torch.where`, not a product): by the chain rule
    0 times the infinite slope of a garbage loss is NaN, and that can't be repaired here.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape.
    """
    require_flat("per_token_loss", per_token_loss, PRECISE_DTYPES)
    require_flat("weights", weights, PRECISE_DTYPES)
    require_same_shape(per_token_loss=per_token_loss, weights=weights)
    kept = torch.where(weights != 0, per_token_loss, torch.zeros_like(per_token_loss))
    return (kept * weights.detach().to(kept.dtype)).sum()


def _check_mode(mode: str, fixed_length: int | None) -> None:
    if mode not in REDUCTION_MODES:
        raise ValueError(f"mode must be one of {REDUCTION_MODES}; got {mode!r}")
    if mode != "seq-mean-token-sum-norm":
        if fixed_length is not None:
            raise ValueError(f"only mode 'seq-mean-token-sum-norm' uses fixed_length; got {fixed_length} with {mode!r}")
    elif fixed_length is None or fixed_length < 1:
        raise ValueError(f"mode 'seq-mean-token-sum-norm' needs fixed_length of at least 1; got {fixed_length}")
