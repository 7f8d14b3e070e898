"""The moments of a gradient estimator by enumeration of a small vocabulary, without any sampling.

For research and for tests: what a weight and a centering do to mean, variance and bias of the gradient at one prefix,
as exact numbers. Nothing here is shared with the losses, which are tested against it: scores are written out as
`s_a = e_a - p`, and the sampler's modelled tail is summed over the whole vocabulary instead of being folded into the
head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import require_flat, require_same_shape
from rlhf_algos.objectives.ratios import clamped_ratio

Centering = Literal["none", "exact", "head"]
CENTERINGS = ("none", "exact", "head")
SampledFrom = Literal["rollout", "trainer"]
SOURCES = ("rollout", "trainer")
# A sum of float64 probabilities is never further from 1 than this by rounding.
PROBABILITY_TOLERANCE = 1e-9


@dataclass(frozen=True)
class GradientMoments:
    """Moments of the estimator's gradient (to ascend) with respect to the logits, at one prefix."""

    mean: Tensor  # [V]
    variance: Tensor  # scalar, trace of the covariance matrix
    on_policy: Tensor  # [V], E_p[A s]: what an estimator without mismatch has as its mean
    bias: Tensor  # [V], mean - on_policy


def estimator_moments(
    logits: Tensor,
    rollout_probs: Tensor,
    advantages: Tensor,
    weight_fn: Callable[[Tensor], Tensor],
    *,
    centering: Centering = "none",
    head_size: int | None = None,
    sampled_from: SampledFrom = "rollout",
    tail_floor: float = 1e-6,
) -> GradientMoments:
    """Exact moments of `g_a = A_a (w_a s_a - mu_w)` over the choice of the token `a`.

    With `p = softmax(logits)`, `s_a = e_a - p`, `w_a = f(exp(clamp(log p_a - log q_a, -20, 20)))` (5.2, 5.6)::

        none:   mu_w = 0
        exact:  mu_w = sum_v q_v w_v s_v                                     (7.2)
        head:   mu_w = sum over v in H of q_v w_v s_v + sum over v not in H of alpha p_v f(1 / alpha) s_v
                alpha = max(1 - Q, tail_floor) / max(1 - P, tail_floor)      (7.5), (7.7)

        mean     = sum_a pi_a g_a                 pi is q, or p with sampled_from="trainer"
        variance = sum_a pi_a |g_a - mean|^2

    Score centering: https://arxiv.org/abs/2609.20807.

    Args:
        logits: `[V]` float64, of the trainer.
        rollout_probs: `[V]` float64, q: at least 0, sum 1.
        advantages: `[V]` float64, that of each choice; any function of the choice will do.
        weight_fn: `f`, elementwise: tensor of ratios to tensor of weights, same shape.
        centering: which `mu_w` is taken off.
        head_size: k for "head", at least 1: the head is the k most probable tokens under q (of equal ones the first),
            without those of probability 0. With `k >= V` this is "exact" (7.8). Refused elsewhere.
        sampled_from: whose choices the moments are over. The weights and `mu_w` stay those of the sampler q.
        tail_floor: least mass of either tail; in (0, 1).

    Returns:
        `GradientMoments`, float64.

    Gradient: none.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, `rollout_probs` that is no distribution, an unknown name, `head_size`
            missing, out of place or below 1, or `tail_floor` outside (0, 1).
    """
    _check_distribution("rollout_probs", rollout_probs)
    require_flat("logits", logits, (torch.float64,))
    require_flat("advantages", advantages, (torch.float64,))
    require_same_shape(logits=logits, rollout_probs=rollout_probs, advantages=advantages)
    _check_choices(centering, head_size, sampled_from, tail_floor)

    with torch.no_grad():
        trainer_logprobs = torch.log_softmax(logits, 0)
        trainer_probs = trainer_logprobs.exp()
        scores = torch.eye(logits.numel(), dtype=torch.float64, device=logits.device) - trainer_probs  # row a is s_a
        weights = weight_fn(_ratios(trainer_logprobs, rollout_probs))
        if centering == "none":
            drift = torch.zeros_like(logits)
        elif head_size is None or head_size >= logits.numel():
            drift = (rollout_probs * weights) @ scores
        else:
            drift = _modelled_drift(trainer_probs, rollout_probs, weights, weight_fn, scores, head_size, tail_floor)
        gradients = advantages[:, None] * (weights[:, None] * scores - drift)
        choices = rollout_probs if sampled_from == "rollout" else trainer_probs
        mean = choices @ gradients
        variance = choices @ (gradients - mean).square().sum(1)
        on_policy = (trainer_probs * advantages) @ scores
        return GradientMoments(mean, variance, on_policy, mean - on_policy)


def weight_bias(
    values: Tensor, trainer_probs: Tensor, rollout_probs: Tensor, weight_fn: Callable[[Tensor], Tensor]
) -> Tensor:
    """Bias of a weighted mean under the sampler, `E_q[w f] - E_p[f] = E_q[(w - rho) f]` (5.3).

    The equality needs `q > 0` wherever `p > 0`; the returned number is the right-hand side. `rho = p / q` as
    it is, while `w` is the weight of the ratio clamped by (5.6).

    Args:
        values: `[V]` float64, `f` of each choice.
        trainer_probs: `[V]` float64: at least 0, sum 1.
        rollout_probs: `[V]` float64: at least 0, sum 1.
        weight_fn: elementwise: tensor of ratios to tensor of weights, same shape.

    Returns:
        Scalar, float64.

    Gradient: none.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, or probabilities that are no distribution.
    """
    require_flat("values", values, (torch.float64,))
    _check_distribution("trainer_probs", trainer_probs)
    _check_distribution("rollout_probs", rollout_probs)
    require_same_shape(values=values, trainer_probs=trainer_probs, rollout_probs=rollout_probs)
    with torch.no_grad():
        sampled = rollout_probs > 0
        rollout, trainer = rollout_probs[sampled], trainer_probs[sampled]
        weights = weight_fn(_ratios(trainer.log(), rollout))
        return (rollout * (weights - trainer / rollout) * values[sampled]).sum()


def _modelled_drift(
    trainer_probs: Tensor,
    rollout_probs: Tensor,
    weights: Tensor,
    weight_fn: Callable[[Tensor], Tensor],
    scores: Tensor,
    head_size: int,
    tail_floor: float,
) -> Tensor:
    """`[V]` mean weighted score under the sampler's head, and under the trainer's tail in place of the sampler's."""
    most_probable = torch.argsort(rollout_probs, descending=True, stable=True)[:head_size]
    in_head = torch.zeros_like(rollout_probs, dtype=torch.bool)
    in_head[most_probable] = True
    in_head &= rollout_probs > 0
    rollout_tail = max(1.0 - float(rollout_probs[in_head].sum()), tail_floor)
    trainer_tail = max(1.0 - float(trainer_probs[in_head].sum()), tail_floor)
    alpha = torch.tensor([rollout_tail / trainer_tail], dtype=torch.float64, device=scores.device)
    modelled = torch.where(in_head, rollout_probs, alpha * trainer_probs)
    return (modelled * torch.where(in_head, weights, weight_fn(1.0 / alpha))) @ scores


def _ratios(trainer_logprobs: Tensor, rollout_probs: Tensor) -> Tensor:
    return clamped_ratio(trainer_logprobs - rollout_probs.log())


def _check_distribution(name: str, probs: Tensor) -> None:
    require_flat(name, probs, (torch.float64,))
    if not bool((probs >= 0).all()) or abs(float(probs.sum()) - 1.0) > PROBABILITY_TOLERANCE:
        raise ValueError(f"{name} must be at least 0 everywhere and sum to 1; the sum is {float(probs.sum())}")


def _check_choices(centering: str, head_size: int | None, sampled_from: str, tail_floor: float) -> None:
    if centering not in CENTERINGS:
        raise ValueError(f"centering must be one of {CENTERINGS}; got {centering!r}")
    if centering != "head":
        if head_size is not None:
            raise ValueError(f"only centering 'head' uses head_size; got {head_size} with {centering!r}")
    elif head_size is None or head_size < 1:
        raise ValueError(f"centering 'head' needs head_size of at least 1; got {head_size}")
    if sampled_from not in SOURCES:
        raise ValueError(f"sampled_from must be one of {SOURCES}; got {sampled_from!r}")
    if not 0.0 < tail_floor < 1.0:
        raise ValueError(f"tail_floor must lie in (0, 1); got {tail_floor}")
