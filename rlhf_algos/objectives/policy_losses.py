"""Policy-gradient losses on the sampled tokens (MATH 3 and 5.1)."""

import math

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_flat, require_same_shape

# MATH 5.6: beyond e^20 a ratio is a sign of a fault, and exp would overflow soon after.
LOG_RATIO_LIMIT = 20.0


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

    With ``r = exp(clamp(log p - log p0, -20, 20))`` (5.6)::

        surrogate = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)          (3.1)
        surrogate = max(surrogate, dual_clip * A)   where A < 0               (3.2), only with dual_clip
        loss      = -surrogate

    PPO: https://arxiv.org/abs/1707.06347, equation 7 (there as a mean to maximize). Dual clip:
    https://arxiv.org/abs/1912.09729, equation 5. Unequal bounds: DAPO, https://arxiv.org/abs/2503.14476.

    Args:
        logprobs: ``[T]`` float32 or float64, log p.
        old_logprobs: ``[T]`` float32 or float64, log p0; detached here.
        advantages: ``[T]`` float32 or float64, that of the response, one for each of its tokens; detached
            here.
        clip_low: the ratio is followed down to ``1 - clip_low``; in [0, 1].
        clip_high: the ratio is followed up to ``1 + clip_high``; at least 0.
        dual_clip: greatest ratio that counts for a negative advantage; greater than 1.

    Returns:
        ``[T]`` loss of each token, and ``[T]`` bool, the tokens whose gradient the clip removed.
        ``pg_clipfrac`` is the sum of the second over trained tokens divided by their global number.

    Gradient: through ``logprobs`` only: ``-r A`` where the clip does not bite, 0 where it does. At ``p = p0``
        it is
    ``-A`` (3.3). The clamp (5.6) also stops it, beyond a log-ratio of 20 either way; this is not counted as
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
    log_ratio = (logprobs - old_logprobs.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
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


def reinforce_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Score-function loss: raise the log-probability of what was better than expected.

    ``loss = -A log p`` for each token, the integrand of REINFORCE (Williams 1992). The importance weight
    (5.1, 5.2) is multiplied by the caller.

    Args:
        logprobs: ``[T]`` float32 or float64, log p.
        advantages: ``[T]`` float32 or float64; detached here.

    Returns:
        ``[T]`` loss of each token.

    Gradient: ``-A`` through ``logprobs``, none through ``advantages``.

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
