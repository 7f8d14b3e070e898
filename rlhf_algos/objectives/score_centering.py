"""Score centering (https://arxiv.org/abs/2609.20807, MATH 7): take the sampler's drift off the gradient."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_dtype, require_flat, require_rank, require_same_shape
from rlhf_algos.objectives.ratios import clamped_ratio

#: Weight of a token from its ratio `p / q`: elementwise, so that the head and the tail can have the same one.
WeightFunction = Callable[[Tensor], Tensor]


def score_centering_term(
    head_logprobs: Tensor,
    rollout_head_logprobs: Tensor,
    weight_fn: WeightFunction,
    *,
    tail_floor: float = 1e-6,
    exact: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """A number per token whose gradient is `mu_w`, the mean weighted score under the sampler.

    With `r_v = exp(clamp(log p_v - log q_v, -20, 20))` (5.6), head `H` and `f = weight_fn`::

        Q = sum_H q_v,  P = sum_H p_v
        alpha = max(1 - Q, tail_floor) / max(1 - P, tail_floor)          (7.5), (7.7)
        c_v   = q_v f(r_v) - alpha f(1 / alpha) p_v                      (7.6)
        c_v   = q_v f(r_v)                                               (7.8), (7.9), only with exact
        term  = sum_H sg(c_v) log p_v

    The value of `term` has no meaning of its own; `centered_reinforce_loss` needs its gradient. Score
    centering: https://arxiv.org/abs/2609.20807.

    Where a floor acts, the tail is still `alpha p_v`, with the floored `alpha`, and `mu_w` is the sum over that
    measure, whose total `Q + alpha (1 - P)` is no longer 1: a trainer tail far below the floor leaves the sampler's
    tail out, however large that is.

    Args:
        head_logprobs: `[T, k]` float32 or float64, log p of the head's tokens.
        rollout_head_logprobs: `[T, k]` float32 or float64, log q of the same tokens; detached here. `-inf` marks
            a place that is only filled up (a support shorter than others): it is not in the head, and what stands
            there in `head_logprobs` is never read. A row of nothing but `-inf` has the term 0: that is how a
            caller leaves out a token whose head is garbage.
        weight_fn: `f`, called without gradients on a `[T, k]` tensor of ratios and on a `[T]` one.
        tail_floor: least mass of either tail; in (0, 1).
        exact: the head is all there is (the whole vocabulary, or the recorded support of truncated sampling with
            `p` renormalized on it by `renormalize_on_support`), so that there is no tail.

    Returns:
        `[T]` term, `[T]` head mass `Q` of the sampler, `[T]` head mass `P` of the trainer; both without
        gradient, as summed, a rounding above 1 included.

    Gradient: `c_v` through `head_logprobs`, exactly 0 at filled-up places; none through
        `rollout_head_logprobs`. A NaN or infinity in the head of a token shows in that token's term and touches no
        other token.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, also of what `weight_fn` returns, or `tail_floor` outside (0, 1).
    """
    for name, tensor in (("head_logprobs", head_logprobs), ("rollout_head_logprobs", rollout_head_logprobs)):
        require_rank(name, tensor, 2)
        require_dtype(name, tensor, PRECISE_DTYPES)
    require_same_shape(head_logprobs=head_logprobs, rollout_head_logprobs=rollout_head_logprobs)
    if not 0.0 < tail_floor < 1.0:
        raise ValueError(f"tail_floor must lie in (0, 1); got {tail_floor}")

    with torch.no_grad():
        in_head = rollout_head_logprobs != -torch.inf
        ratio = clamped_ratio(head_logprobs - rollout_head_logprobs)
        rollout_probs = rollout_head_logprobs.exp()
        trainer_probs = head_logprobs.exp().masked_fill_(~in_head, 0.0)
        rollout_mass, trainer_mass = rollout_probs.sum(1), trainer_probs.sum(1)
        coefficients = _weights(weight_fn, ratio).mul(rollout_probs)
        if not exact:
            rollout_tail = (1.0 - rollout_mass).clamp(min=tail_floor)
            trainer_tail = (1.0 - trainer_mass).clamp(min=tail_floor)
            alpha = rollout_tail / trainer_tail
            tail_weight = alpha * _weights(weight_fn, clamped_ratio(trainer_tail.log() - rollout_tail.log()))
            coefficients = coefficients - tail_weight[:, None] * trainer_probs
        # Replaced, not multiplied away, here and below: at a filled-up place both factors may be infinite or NaN.
        coefficients = coefficients.masked_fill(~in_head, 0.0)
    term = (coefficients * head_logprobs.masked_fill(~in_head, 0.0)).sum(1)
    return term, rollout_mass, trainer_mass


def centered_reinforce_loss(logprobs: Tensor, advantages: Tensor, weights: Tensor, term: Tensor) -> Tensor:
    """REINFORCE with the mean weighted score under the sampler taken off.

    `loss = -sg(A) [ sg(w) log p - term ]` for each token (7.3). Under the sampler the mean of `w s - mu_w` is 0, so
    a constant added to all advantages no longer moves the policy (7.1). Score centering:
    https://arxiv.org/abs/2609.20807.

    Args:
        logprobs: `[T]` float32 or float64, log p of the sampled token.
        advantages: `[T]` float32 or float64; detached here.
        weights: `[T]` float32 or float64, `w = f(p / q)` of the sampled token, in the head or not, with the `f`
            of the term; detached here.
        term: `[T]` float32 or float64, of `score_centering_term`.

    Returns:
        `[T]` loss of each token.

    Gradient: `-A w` through `logprobs` and `A` through `term`; none through `advantages` and `weights`.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape.
    """
    tensors = {"logprobs": logprobs, "advantages": advantages, "weights": weights, "term": term}
    for name, tensor in tensors.items():
        require_flat(name, tensor, PRECISE_DTYPES)
    require_same_shape(**tensors)
    return -advantages.detach() * (weights.detach() * logprobs - term)


def renormalize_on_support(
    logprobs: Tensor, support_logprobs: Tensor, support_mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities given that the token is one of those that top-p or top-k left to choose from.

    With the recorded support `S` of a token (7.9)::

        normalizer  = logsumexp over v in S of log p_v
        log p^S     = log p - normalizer
        entropy     = -sum over v in S of p^S_v log p^S_v

    Args:
        logprobs: `[T]` float32 or float64, log p of the sampled token, over the full vocabulary.
        support_logprobs: `[T, S]` float32 or float64, log p of the support's tokens, over the full vocabulary.
        support_mask: `[T, S]` bool, False at places that are only filled up; what stands there is never read.

    Returns:
        `[T]` log p^S of the sampled token, `[T, S]` log p^S of the support, `-inf` where `support_mask` is
        False, and `[T]` entropy of p^S. A token without any support has the first `inf`: it can't have been
        sampled.

    Gradient: through `logprobs` and `support_logprobs`, from all three results; exactly 0 at filled-up places. A
        support of one token leaves nothing to learn: the gradient with respect to the logits is exactly 0.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape.
    """
    require_flat("logprobs", logprobs, PRECISE_DTYPES)
    require_rank("support_logprobs", support_logprobs, 2)
    require_dtype("support_logprobs", support_logprobs, PRECISE_DTYPES)
    require_dtype("support_mask", support_mask, (torch.bool,))
    require_same_shape(support_logprobs=support_logprobs, support_mask=support_mask)
    if support_logprobs.shape[0] != logprobs.shape[0]:
        raise ValueError(
            f"support_logprobs must have shape ({logprobs.shape[0]}, S), one row for each of logprobs; "
            f"got {tuple(support_logprobs.shape)}"
        )
    normalizer = support_logprobs.masked_fill(~support_mask, -torch.inf).logsumexp(1)
    renormalized = support_logprobs - normalizer[:, None]
    head = renormalized.masked_fill(~support_mask, -torch.inf)
    # p log p is 0 where p is 0; 0 times -inf would be NaN.
    entropy = -(head.exp() * renormalized.masked_fill(~support_mask, 0.0)).sum(1)
    return logprobs - normalizer, head, entropy


def _weights(weight_fn: WeightFunction, ratio: Tensor) -> Tensor:
    weights = weight_fn(ratio)
    if weights.shape != ratio.shape:
        raise ValueError(
            f"weight_fn must be elementwise: expected shape {tuple(ratio.shape)}, got {tuple(weights.shape)}"
        )
    return weights
