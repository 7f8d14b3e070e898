"""Policy-gradient losses on the sampled tokens (MATH 3 and 5.1)."""

import math

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_flat, require_same_shape
from rlhf_algos.objectives.ratios import LOG_RATIO_LIMIT, clamped_ratio


def ppo_clip_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate: follow the advantage until the policy has moved far enough from the old one.

    With `r = exp(clamp(log p - log p0, -20, 20))` (5.6)::

        surrogate = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)          (3.1)
        surrogate = max(surrogate, dual_clip * A)   where A < 0               (3.2), only with dual_clip
        loss      = -surrogate

    PPO: https://arxiv.org/abs/1707.06347, equation 7 (there as a mean to maximize). Dual clip:
    https://arxiv.org/abs/1912.09729, equation 5. Unequal bounds: DAPO, https://arxiv.org/abs/2503.14476.

    Args:
        logprobs: `[T]` float32 or float64, log p.
        old_logprobs: `[T]` float32 or float64, log p0; detached here.
        advantages: `[T]` float32 or float64, that of the response, one for each of its tokens; detached
            here.
        clip_low: the ratio is followed down to `1 - clip_low`; in [0, 1].
        clip_high: the ratio is followed up to `1 + clip_high`; at least 0.
        dual_clip: greatest ratio that counts for a negative advantage; greater than 1.

    Returns:
        `[T]` loss of each token, and `[T]` bool, the tokens whose gradient the clip removed.
        `pg_clipfrac` is the sum of the second over trained tokens divided by their global number.

    Gradient: through `logprobs` only: `-r A` where the clip does not bite, 0 where it does. At `p = p0`
        it is
    `-A` (3.3). The clamp (5.6) also stops it, beyond a log-ratio of 20 either way; this is not counted as
    clipped.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, or a bound outside its range.
    """
    for name, tensor in (("logprobs", logprobs), ("old_logprobs", old_logprobs), ("advantages", advantages)):
        require_flat(name, tensor, PRECISE_DTYPES)
    require_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    _check_bounds(clip_low, clip_high, dual_clip)

    advantages = advantages.detach()
    ratio = clamped_ratio(logprobs - old_logprobs.detach())
    too_high = (advantages > 0) & (ratio > 1.0 + clip_high)
    too_low = (advantages < 0) & (ratio < 1.0 - clip_low)
    clipped = too_high | too_low
    bound = ratio.detach().clamp(1.0 - clip_low, 1.0 + clip_high)
    if dual_clip is not None:
        too_far = (advantages < 0) & (ratio > dual_clip)
        clipped = clipped | too_far
        bound = torch.where(too_far, dual_clip, bound)
    # A choice of branch, not min and max: those split the gradient where both sides are equal.
    return -torch.where(clipped, bound, ratio) * advantages, clipped


def sequence_clip_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    sample_ids: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate with one ratio per response: the geometric mean of the ratios of its trained tokens.

    With `n_i` trained tokens in response `i`::

        s_i     = exp(clamp(mean over its trained tokens of (log p - log p0), -20, 20))     (3.5), (5.6)
        s_it    = sg(s_i) p_it / sg(p_it)                                                   (3.8)
        loss_it = -min(s_it A_i, clip(s_it, 1 - clip_low, 1 + clip_high) A_i)

    The mean of `loss_it` over the response is (3.6), and its gradient (3.7); a weight of a token (5.2) can multiply it.
    GSPO: https://arxiv.org/abs/2507.18071, equations 5 to 7 and 13.

    Args:
        logprobs: `[T]` float32 or float64, log p.
        old_logprobs: `[T]` float32 or float64, log p0; detached here.
        advantages: `[T]` float32 or float64, that of the response, one for each of its tokens; detached here.
        sample_ids: `[T]` int64, response of each token: any values in any order. All trained tokens of a response must
            be in one call.
        loss_mask: `[T]` bool, trained tokens. What stands elsewhere is never read.
        clip_low: the ratio is followed down to `1 - clip_low`; in [0, 1].
        clip_high: the ratio is followed up to `1 + clip_high`; at least 0.

    Returns:
        `[T]` loss of each token, 0 at untrained ones; and `[T]` bool, the trained tokens of the responses whose
        gradient the clip removed. `pg_clipfrac` is the fraction of such responses.

    Gradient: through `logprobs` only: `-s_i A_i` at each trained token of a response that is not clipped, exactly 0
        elsewhere. The clamp (5.6) also stops it; this is not counted as clipped.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, or a bound outside its range.
    """
    for name, tensor in (("logprobs", logprobs), ("old_logprobs", old_logprobs), ("advantages", advantages)):
        require_flat(name, tensor, PRECISE_DTYPES)
    require_flat("sample_ids", sample_ids, (torch.int64,))
    require_flat("loss_mask", loss_mask, (torch.bool,))
    require_same_shape(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=advantages,
        sample_ids=sample_ids,
        loss_mask=loss_mask,
    )
    _check_bounds(clip_low, clip_high, None)

    trained, advantage = logprobs[loss_mask], advantages.detach()[loss_mask]
    log_ratio = _mean_of_response(trained.detach() - old_logprobs.detach()[loss_mask], sample_ids[loss_mask])
    ratio = clamped_ratio(log_ratio)
    clipped = ((advantage > 0) & (ratio > 1.0 + clip_high)) | ((advantage < 0) & (ratio < 1.0 - clip_low))
    followed = ~clipped & (log_ratio.abs() <= LOG_RATIO_LIMIT)
    bound = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    # 1, with the gradient of log p.
    own = torch.where(followed, (trained - trained.detach()).exp(), torch.ones_like(trained))
    loss = torch.zeros_like(logprobs).masked_scatter(loss_mask, -torch.where(clipped, bound, ratio) * own * advantage)
    return loss, torch.zeros_like(loss_mask).masked_scatter(loss_mask, clipped)


def _mean_of_response(values: Tensor, sample_ids: Tensor) -> Tensor:
    """`[N]`, for each token the mean over its response, in float64 and back."""
    responses, of_token, counts = torch.unique(sample_ids, return_inverse=True, return_counts=True)
    totals = torch.zeros(responses.shape, dtype=torch.float64, device=values.device)
    return (totals.index_add(0, of_token, values.double()) / counts)[of_token].to(values.dtype)


def reinforce_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Score-function loss: raise the log-probability of what was better than expected.

    `loss = -A log p` for each token, the integrand of REINFORCE (Williams 1992). The importance weight
    (5.1, 5.2) is multiplied by the caller.

    Args:
        logprobs: `[T]` float32 or float64, log p.
        advantages: `[T]` float32 or float64; detached here.

    Returns:
        `[T]` loss of each token.

    Gradient: `-A` through `logprobs`, none through `advantages`.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape.
    """
    require_flat("logprobs", logprobs, PRECISE_DTYPES)
    require_flat("advantages", advantages, PRECISE_DTYPES)
    require_same_shape(logprobs=logprobs, advantages=advantages)
    return -advantages.detach() * logprobs


def _check_bounds(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    if not 0.0 <= clip_low <= 1.0:
        raise ValueError(f"clip_low must lie in [0, 1]; got {clip_low}")
    if not 0.0 <= clip_high < math.inf:
        raise ValueError(f"clip_high must be finite and at least 0; got {clip_high}")
    if dual_clip is not None and not 1.0 < dual_clip < math.inf:
        raise ValueError(f"dual_clip must be finite and greater than 1; got {dual_clip}")
