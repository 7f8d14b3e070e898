"""Sequence-level correctors: one weight for all trained tokens of a response (MATH 5.4 and 5.5)."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from rlhf_algos.corrections._bounds import outside, require_bounds, require_token_bounds
from rlhf_algos.corrections.corrector import (
    Correction,
    Corrector,
    require_weights,
    trained_log_ratio,
)
from rlhf_algos.objectives.ratios import clamped_log_ratio, clamped_ratio

Aggregate = Literal["geometric", "product"]


@dataclass(frozen=True)
class SequenceCorrector(Corrector):
    """One weight per response, from the ratios of its trained tokens.

    With `d_t = clamp(log rho_t, -20, 20)` (5.6) over the trained tokens of a response::

        rho = exp(clamp(mean d_t, -20, 20))     aggregate="geometric", the default     (5.5)
        rho = exp(clamp(sum d_t, -20, 20))      aggregate="product"                    (5.4)
        w   = 0  if any rho_t lies outside [token_low, token_high], else f(rho)

    The product is the exact ratio of the two probabilities of the response, and leaves any band after enough
    tokens: 10,000 tokens each off by -0.001 give 4.5e-5. The geometric mean of the same tokens is 0.999 for every
    length, which is why it is the default; it measures how far the two policies are apart per token and is no
    importance ratio. Since (5.6) defines the ratio of a token, each token is clamped before the sum, and the sum
    again: two opposite infinities give 1, not NaN, and one broken token moves a mean by no more than 20 / n. Use
    the veto to reject a response for one such token.

    Args:
        low: lower end of the band of the response's ratio.
        high: upper end; both ends are inside.
        aggregate: "geometric" mean or "product" of the ratios of the trained tokens.
        token_low: the response gets weight 0 if a trained token's ratio is below; None for no such veto.
        token_high: the same if one is above.

    Raises:
        TypeError: a bound is no Python number.
        ValueError: bounds out of order or not finite, or an unknown `aggregate`.
    """

    low: float = 0.0
    high: float = 2.0
    aggregate: Aggregate = "geometric"
    token_low: float | None = None
    token_high: float | None = None
    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_bounds(self, self.low, self.high)
        require_token_bounds(self, self.token_low, self.token_high)
        if self.aggregate not in get_args(Aggregate):
            raise ValueError(
                f"{type(self).__name__}: aggregate must be one of {get_args(Aggregate)}; got {self.aggregate!r}"
            )

    @abstractmethod
    def sequence_weight(self, ratio: Tensor) -> Tensor:
        """`f(rho)` of each response, elementwise: `[R]`, float32 or float64, to the same, detached."""

    def weight(self, ratio: Tensor) -> Tensor:
        """Refused: the weight of a token can't be told from its own ratio.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"{type(self).__name__} has no weight(ratio): one weight belongs to a whole response and depends on the "
            "ratios of all its tokens. Call correct(), or use a token-wise corrector (score centering needs one)."
        )

    def correct(self, log_ratio: Tensor, sample_ids: Tensor, loss_mask: Tensor) -> Correction:
        """Weights and ratios of a batch of sampled tokens: those of the response, at each of its trained tokens.

        Args:
            log_ratio: `[T]` float32 or float64, `log p0 - log q` or `log p - log q` (5.1); detached here.
            sample_ids: `[T]` int64, response of each token: any values in any order, neighbours or not. All
                trained tokens of a response must be in one call.
            loss_mask: `[T]` bool, trained tokens. What stands elsewhere is never read.

        Returns:
            `Correction`: `weights` `[T]` and `ratios` `[T]` in the dtype of `log_ratio`, both 1 at
            untrained tokens. Sums over tokens are made in float64.

        Gradient: none.

        Raises:
            TypeError: wrong dtype.
            ValueError: wrong rank or shape; a NaN at a trained token (names the sample); a bad
                `sequence_weight`.
        """
        selected = trained_log_ratio(log_ratio, sample_ids, loss_mask)
        token_log_ratio = clamped_log_ratio(selected[loss_mask])  # [N] trained tokens
        # R responses with a trained token; of_token [N] is the response of each trained token, counts [R].
        responses, of_token, counts = torch.unique(sample_ids[loss_mask], return_inverse=True, return_counts=True)
        totals = torch.zeros(responses.shape, dtype=torch.float64, device=log_ratio.device)
        totals = totals.index_add(0, of_token, token_log_ratio.double())
        if self.aggregate == "geometric":
            totals = totals / counts
        # Back in the dtype of the tokens before exp: a response of one token has exactly that token's ratio.
        response_ratio = clamped_ratio(totals.to(log_ratio.dtype))
        response_weight = self.sequence_weight(response_ratio)
        everywhere = torch.ones_like(responses, dtype=torch.bool)
        require_weights(self, "sequence_weight", response_weight, response_ratio, everywhere)

        vetoes = outside(token_log_ratio.exp(), self.token_low, self.token_high)
        vetoed = torch.zeros_like(totals).index_add(0, of_token, vetoes.double()) > 0
        response_weight = torch.where(vetoed, torch.zeros_like(response_weight), response_weight.detach())
        weights, ratios = torch.ones_like(selected), torch.ones_like(selected)
        weights[loss_mask] = response_weight[of_token]
        ratios[loss_mask] = response_ratio[of_token]
        return Correction(weights, ratios)


@dataclass(frozen=True)
class SequenceTIS(SequenceCorrector):
    """The response's ratio truncated: `f(rho) = clip(rho, low, high)`, for all its trained tokens.

    The ratio is the geometric mean over the trained tokens unless `aggregate="product"`; see
    `SequenceCorrector` for the definition, the options and the veto. Defaults: low 0, high 2, no veto.
    """

    registered_name: ClassVar[str | None] = "sequence_tis"

    def sequence_weight(self, ratio: Tensor) -> Tensor:
        """`clip(ratio, low, high)`."""
        return ratio.clamp(self.low, self.high)


@dataclass(frozen=True)
class SequenceMask(SequenceCorrector):
    """The response's ratio inside `[low, high]`, both ends included, else 0, for all its trained tokens.

    The ratio is the geometric mean over the trained tokens unless `aggregate="product"`; see
    `SequenceCorrector` for the definition, the options and the veto. Defaults: low 0.5, high 2, no veto. A
    response that is dropped stays in the denominator of the loss (4.3).
    """

    low: float = 0.5
    registered_name: ClassVar[str | None] = "sequence_mask"

    def sequence_weight(self, ratio: Tensor) -> Tensor:
        """`ratio` or 0."""
        return torch.where(outside(ratio, self.low, self.high), torch.zeros_like(ratio), ratio)
