"""Estimates of the divergence from a reference policy (http://joschu.net/blog/kl-approx.html)."""

from typing import Literal

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_flat, require_same_shape
from rlhf_algos.objectives.ratios import LOG_RATIO_LIMIT

KlKind = Literal["k1", "k2", "k3"]
KINDS = ("k1", "k2", "k3")


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, *, kind: KlKind) -> Tensor:
    """Per-token estimate of `KL(p || p_ref)` from tokens sampled from `p`.

    With `d = log p_ref - log p`::

        k1 = -d                    unbiased, may be negative
        k2 = d^2 / 2               biased, never negative
        k3 = exp(d) - 1 - d        unbiased, never negative, less variance than k1 near d = 0

    Args:
        logprobs: `[T]` float32 or float64, log p.
        ref_logprobs: `[T]` float32 or float64, log p_ref; detached here.
        kind: which estimate; no default, since their gradients are different objects.

    Returns:
        `[T]` estimate of each token.

    Gradient, through `logprobs`: an unbiased value need not have an unbiased gradient. With `s = grad log
    p`:

    - k1: `s`, whose mean under `p` is 0: no use as a loss (use it inside the reward).
    - k2: `-d s`, whose mean is the gradient of `KL(p || p_ref)`.
    - k3: `(1 - exp(d)) s`, whose mean is the gradient of `KL(p_ref || p)`. Beyond `d = 20` the value
      stays at that of 20 and the gradient is 0.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, or an unknown `kind`.
    """
    require_flat("logprobs", logprobs, PRECISE_DTYPES)
    require_flat("ref_logprobs", ref_logprobs, PRECISE_DTYPES)
    require_same_shape(logprobs=logprobs, ref_logprobs=ref_logprobs)
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}; got {kind!r}")
    log_ratio = ref_logprobs.detach() - logprobs
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    log_ratio = log_ratio.clamp(max=LOG_RATIO_LIMIT)
    # expm1 keeps the digits that exp(d) - 1 would lose for small d.
    return torch.expm1(log_ratio) - log_ratio
