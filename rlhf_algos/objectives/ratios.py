"""Ratios of two probabilities, from their logarithms (MATH 5.6)."""

from torch import Tensor

#: Beyond e^20 a ratio is the sign of a fault, and `exp` would overflow soon after.
LOG_RATIO_LIMIT = 20.0


def clamped_log_ratio(log_ratio: Tensor) -> Tensor:
    """`clamp(log_ratio, -20, 20)` (5.6): any shape, same dtype.

    Gradient: 1 within the limits, 0 beyond.
    """
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def clamped_ratio(log_ratio: Tensor) -> Tensor:
    """`exp(clamp(log_ratio, -20, 20))` (5.6): any shape, same dtype, never 0 and never infinite.

    Gradient: the ratio within the limits, 0 beyond.
    """
    return clamped_log_ratio(log_ratio).exp()
