"""The band of ratios that a corrector keeps: both ends are inside."""

import math
from typing import Any

import torch
from torch import Tensor


def require_bounds(corrector: object, low: float, high: float) -> None:
    """Raises unless `0 <= low <= high`, both finite numbers."""
    name = type(corrector).__name__
    _require_number(name, "low", low)
    _require_number(name, "high", high)
    if not 0.0 <= low <= high < math.inf:
        raise ValueError(
            f"{name}: low and high must be finite with 0 <= low <= high; got low={low}, high={high}. "
            "For no upper bound give high=1e9: no ratio exceeds e^20, about 4.9e8."
        )


def require_token_bounds(corrector: object, token_low: float | None, token_high: float | None) -> None:
    """Raises unless each bound is None or a finite number, and `0 <= token_low <= token_high`."""
    name = type(corrector).__name__
    for option, value in (("token_low", token_low), ("token_high", token_high)):
        if value is not None:
            _require_number(name, option, value)
    low = 0.0 if token_low is None else token_low
    high = low if token_high is None else token_high
    if not 0.0 <= low <= high < math.inf:
        raise ValueError(
            f"{name}: token_low and token_high must be finite with 0 <= token_low <= token_high; "
            f"got token_low={token_low}, token_high={token_high}. None switches that side of the veto off."
        )


def outside(ratio: Tensor, low: float | None, high: float | None) -> Tensor:
    """Where `ratio` lies outside `[low, high]`; None is no bound. Any shape, bool; False where it is NaN.

    Both ends are inside, in the precision of `ratio`: a float32 ratio of 0.4 is not below `low=0.4`.
    """
    result = torch.zeros_like(ratio, dtype=torch.bool)
    if low is not None:
        result = result | (ratio < low)
    if high is not None:
        result = result | (ratio > high)
    return result


def _require_number(name: str, option: str, value: Any) -> None:
    # JSON must give the same value back, so no numpy scalar and no tensor; True would pass for 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: {option} must be a Python number; got {value!r} ({type(value).__name__})")
