"""How far the sampler and the trainer disagree on the trained tokens (MATH 9)."""

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_flat, require_same_shape
from rlhf_algos.objectives.ratios import clamped_log_ratio

RATIO_LOW, RATIO_HIGH = 0.5, 2.0

#: Entries of the result of `mismatch_sums` that combine by maximum; all others combine by addition.
MAX_ENTRIES = frozenset({"abs_diff_max"})


def mismatch_sums(old_logprobs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor) -> dict[str, Tensor]:
    """Totals over the trained tokens, from which `finalize_mismatch` makes the metrics.

    With `d = log p0 - log q` and `rho = exp(clamp(d, -20, 20))` (5.6), over trained tokens::

        token_count       N                 combine by addition
        abs_diff_sum      sum |d|           addition
        abs_diff_max      max |d|           MAXIMUM (0 if N = 0)
        kl_k3_sum         sum rho - 1 - log rho, never negative; addition
        kl_k1_sum         sum -d            addition
        ratio_sum         sum rho           addition
        ratio_square_sum  sum rho^2         addition
        outside_count     number of rho outside [0.5, 2], both ends counted as inside; addition

    Totals, not means: a mean of the means of unequal micro-batches is wrong.

    Args:
        old_logprobs: `[T]` float32 or float64, log p0.
        rollout_logprobs: `[T]` float32 or float64, log q of the sampled token.
        loss_mask: `[T]` bool, trained tokens. What stands elsewhere is never read.

    Returns:
        Scalars, float64.

    Gradient: none.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, or a log-probability at a trained token that is NaN or infinite; it
            names the first such position in `[0, T)`, which the caller turns into a sample.
    """
    require_flat("old_logprobs", old_logprobs, PRECISE_DTYPES)
    require_flat("rollout_logprobs", rollout_logprobs, PRECISE_DTYPES)
    require_flat("loss_mask", loss_mask, (torch.bool,))
    require_same_shape(old_logprobs=old_logprobs, rollout_logprobs=rollout_logprobs, loss_mask=loss_mask)
    old = _finite_trained("old_logprobs", old_logprobs, loss_mask)
    rollout = _finite_trained("rollout_logprobs", rollout_logprobs, loss_mask)

    difference = old - rollout
    magnitude = difference.abs()
    log_ratio = clamped_log_ratio(difference)
    ratio = log_ratio.exp()
    zero = difference.new_zeros(())
    return {
        "token_count": zero + difference.numel(),
        "abs_diff_sum": magnitude.sum(),
        "abs_diff_max": magnitude.max() if magnitude.numel() else zero,
        # expm1 keeps the digits that rho - 1 would lose for small differences.
        "kl_k3_sum": (torch.expm1(log_ratio) - log_ratio).sum(),
        "kl_k1_sum": -difference.sum(),
        "ratio_sum": ratio.sum(),
        "ratio_square_sum": ratio.square().sum(),
        "outside_count": ((ratio < RATIO_LOW) | (ratio > RATIO_HIGH)).sum().double(),
    }


def finalize_mismatch(sums: dict[str, Tensor]) -> dict[str, float]:
    """The metrics of MATH 9 from the totals of all trained tokens of the optimizer batch.

    - `train_rollout_logprob_abs_diff`: mean of `|log p0 - log q|`.
    - `train_rollout_logprob_abs_diff_max`: its maximum.
    - `mismatch_kl`: k3, mean of `rho - 1 - log rho`; estimates `KL(q || p0)`, never negative.
    - `mismatch_kl_k1`: mean of `log q - log p0`; estimates the same `KL(q || p0)`: positive when the
      sampler found its own tokens likelier than the trainer does.
    - `ess`: `(sum rho)^2 / (N sum rho^2)`, effective sample size as a fraction of N, 1 if all rho are
      equal.
    - `ratio_outside_fraction`: fraction of tokens with rho outside [0.5, 2].

    Args:
        sums: result of `mismatch_sums`, perhaps of several parts combined as it says.

    Returns:
        The metrics as Python numbers; empty if no token was trained (absent, not 0 and not NaN).

    Gradient: none.

    Raises:
        KeyError: an entry is missing.
    """
    totals = {name: float(value) for name, value in sums.items()}
    count = totals["token_count"]
    if count == 0:
        return {}
    return {
        "train_rollout_logprob_abs_diff": totals["abs_diff_sum"] / count,
        "train_rollout_logprob_abs_diff_max": totals["abs_diff_max"],
        "mismatch_kl": totals["kl_k3_sum"] / count,
        "mismatch_kl_k1": totals["kl_k1_sum"] / count,
        "ess": totals["ratio_sum"] ** 2 / (count * totals["ratio_square_sum"]),
        "ratio_outside_fraction": totals["outside_count"] / count,
    }


def _finite_trained(name: str, values: Tensor, loss_mask: Tensor) -> Tensor:
    trained = values.detach()[loss_mask].double()
    finite = torch.isfinite(trained)
    if not bool(finite.all()):
        index = int((~finite).nonzero()[0])
        position = int(loss_mask.nonzero()[index])
        raise ValueError(
            f"{name} must be finite at trained tokens; position {position} is {trained[index].item()} "
            f"({int((~finite).sum())} such tokens in all)"
        )
    return trained
