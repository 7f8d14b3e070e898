"""Token-wise correctors: the weight of a token is a function of its own ratio (MATH 5)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlhf_algos.corrections._bounds import outside, require_bounds
from rlhf_algos.corrections.corrector import Corrector
from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_dtype


@dataclass(frozen=True)
class NoCorrection(Corrector):
    """`f(rho) = 1`: train as if the sampler were the trainer.

    The ratios of its `Correction` are the real ones, so the metrics show what is left uncorrected.
    """

    registered_name: ClassVar[str | None] = "none"

    def weight(self, ratio: Tensor) -> Tensor:
        """1 for each ratio: any shape, float32 or float64, detached."""
        require_dtype("ratio", ratio, PRECISE_DTYPES)
        return torch.ones_like(ratio)


@dataclass(frozen=True)
class ImportanceSampling(Corrector):
    """`f(rho) = rho`: unbiased at a fixed prefix, and as noisy as the largest ratio.

    The ratio is still clamped to `[e^-20, e^20]` when it is formed (5.6).
    """

    registered_name: ClassVar[str | None] = "is"

    def weight(self, ratio: Tensor) -> Tensor:
        """The ratio itself: any shape, float32 or float64, detached."""
        require_dtype("ratio", ratio, PRECISE_DTYPES)
        return ratio.detach()


@dataclass(frozen=True)
class TIS(Corrector):
    """Truncated importance sampling: `f(rho) = clip(rho, low, high)`.

    A token that the trainer finds much likelier than the sampler did keeps the weight `high`. With `low = 0`
    the bias at a fixed prefix is `-E_q[(rho - high) g 1{rho > high}]` (5.3).

    Args:
        low: least weight.
        high: greatest weight.

    Raises:
        TypeError: a bound is no Python number.
        ValueError: not `0 <= low <= high`, or not finite.
    """

    low: float = 0.0
    high: float = 2.0
    registered_name: ClassVar[str | None] = "tis"

    def __post_init__(self) -> None:
        require_bounds(self, self.low, self.high)

    def weight(self, ratio: Tensor) -> Tensor:
        """`clip(ratio, low, high)`: any shape, float32 or float64, detached; NaN stays NaN."""
        require_dtype("ratio", ratio, PRECISE_DTYPES)
        return ratio.detach().clamp(self.low, self.high)


@dataclass(frozen=True)
class IcePop(Corrector):
    """`f(rho) = rho` inside `[low, high]`, both ends included, and 0 outside (arXiv 2510.18855).

    A token on which the two policies disagree too much is dropped; it stays in the denominator of the loss (4.3).
    The bias at a fixed prefix is `-E_q[rho g 1{rho outside}]` (5.3).

    Args:
        low: least ratio that is kept.
        high: greatest ratio that is kept.

    Raises:
        TypeError: a bound is no Python number.
        ValueError: not `0 <= low <= high`, or not finite.
    """

    low: float = 0.5
    high: float = 2.0
    registered_name: ClassVar[str | None] = "icepop"

    def __post_init__(self) -> None:
        require_bounds(self, self.low, self.high)

    def weight(self, ratio: Tensor) -> Tensor:
        """`ratio` or 0: any shape, float32 or float64, detached; NaN stays NaN."""
        require_dtype("ratio", ratio, PRECISE_DTYPES)
        kept = ratio.detach()
        # A selection: an infinite ratio times 0 would be NaN.
        return torch.where(outside(kept, self.low, self.high), torch.zeros_like(kept), kept)
