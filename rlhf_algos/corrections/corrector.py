"""`Corrector`: what decides how much a sampled token counts (MATH 5)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rlhf_algos.objectives._checks import PRECISE_DTYPES, require_dtype, require_flat, require_same_shape
from rlhf_algos.objectives.ratios import clamped_ratio
from rlhf_algos.plugins import plugin_settings


class Correction(NamedTuple):
    """What a corrector made of a batch of tokens; both are detached and in the dtype of the log-ratios."""

    weights: Tensor  # [T] w: multiplies the loss of the token; 1 at untrained tokens
    ratios: Tensor  # [T] rho that f saw, of the token or of its response; 1 at untrained tokens


class Corrector(ABC):
    """A detached weight `w = f(rho)` for the loss of each sampled token (5.2).

    `rho = p0 / q` for PPO-clip losses and `rho = sg(p) / q` for REINFORCE losses (5.1): trainer over
    sampler. Subclass it, write `weight`, and run `check_corrector`. Options
    belong into the fields of a frozen dataclass; then `settings()`, equality and `repr` need no code.
    """

    #: True: `weight(ratio)` looks at each ratio by itself, so score centering can apply it to head and tail.
    #: False: a weight depends on more of its response than the token's own ratio; only `correct` can tell it.
    elementwise: ClassVar[bool] = True

    #: The short name in `CORRECTORS`; None for a class outside of this library. Not inherited.
    registered_name: ClassVar[str | None] = None

    @abstractmethod
    def weight(self, ratio: Tensor) -> Tensor:
        """`f(rho)`, elementwise.

        Args:
            ratio: any shape (`[T]` sampled tokens, `[T, k]` a head), float32 or float64, positive; not to be
                changed in place.

        Returns:
            Shape and dtype of `ratio`; finite and at least 0.

        Gradient: none. The result is detached, whatever `ratio` is: a weight that carries a gradient optimizes
            another objective.
        """

    def correct(self, log_ratio: Tensor, sample_ids: Tensor, loss_mask: Tensor) -> Correction:
        """Weights and ratios of a batch of sampled tokens.

        `rho = exp(clamp(log_ratio, -20, 20))` (5.6), `w = f(rho)` (5.2), at trained tokens. An untrained token
        has weight 1 and ratio 1 whatever stands there (NaN, infinity), since it is selected away before the
        arithmetic, and it influences no other token.

        Args:
            log_ratio: `[T]` float32 or float64, `log p0 - log q` or `log p - log q` (5.1); detached here.
                An infinity is clamped like any other large number.
            sample_ids: `[T]` int64, response of each token: any values in any order.
            loss_mask: `[T]` bool, trained tokens.

        Returns:
            `Correction`: `weights` `[T]` and `ratios` `[T]` in the dtype of `log_ratio`.

        Gradient: none.

        Raises:
            TypeError: wrong dtype.
            ValueError: wrong rank or shape; a NaN at a trained token (names the sample); a `weight` that
                returned another shape or dtype, or a value that is not finite.
        """
        ratios = clamped_ratio(trained_log_ratio(log_ratio, sample_ids, loss_mask))
        weights = self.weight(ratios)
        require_weights(self, "weight", weights, ratios, loss_mask)
        return Correction(torch.where(loss_mask, weights.detach(), torch.ones_like(ratios)), ratios)

    def settings(self) -> dict[str, Any]:
        """What `make_corrector` needs to build an equal corrector; JSON can hold it.

        Returns:
            `{"type": name, option: value, ...}`; the type is the short name of one of ours, else
            "package.module.ClassName".

        Raises:
            TypeError: the class has options and is no dataclass, so they can't be found.
        """
        return plugin_settings(self)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.settings() == other.settings()

    def __hash__(self) -> int:
        return hash(json.dumps(self.settings(), sort_keys=True))

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.settings().items() if name != "type")
        return f"{type(self).__name__}({options})"


def trained_log_ratio(log_ratio: Tensor, sample_ids: Tensor, loss_mask: Tensor) -> Tensor:
    """The checked, detached log-ratios; 0 at untrained tokens.

    Args:
        log_ratio: `[T]` float32 or float64.
        sample_ids: `[T]` int64.
        loss_mask: `[T]` bool.

    Returns:
        `[T]`, dtype of `log_ratio`; may be infinite.

    Gradient: none.

    Raises:
        TypeError: wrong dtype.
        ValueError: wrong rank or shape, or a NaN at a trained token.
    """
    require_flat("log_ratio", log_ratio, PRECISE_DTYPES)
    require_flat("sample_ids", sample_ids, (torch.int64,))
    require_flat("loss_mask", loss_mask, (torch.bool,))
    require_same_shape(log_ratio=log_ratio, sample_ids=sample_ids, loss_mask=loss_mask)
    values = log_ratio.detach()
    selected = torch.where(loss_mask, values, torch.zeros_like(values))
    bad = selected.isnan().nonzero().flatten()
    if bad.numel():
        position = int(bad[0])
        sample = int(sample_ids[position])
        raise ValueError(
            f"log_ratio is NaN at {bad.numel()} trained token(s), the first at position {position}, token "
            f"{int((sample_ids[:position] == sample).sum())} of sample {sample}: a log-probability there is NaN, or "
            "both are infinite. Nothing is replaced or skipped; look at that sample's log-probabilities."
        )
    return selected


def require_weights(corrector: Corrector, method: str, weights: Any, ratios: Tensor, loss_mask: Tensor) -> None:
    """Raises unless what a user's method returned can multiply a loss: shape, dtype, finite where trained."""
    name = f"the result of {type(corrector).__name__}.{method}"
    if not isinstance(weights, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(weights).__name__}")
    require_dtype(name, weights, (ratios.dtype,))
    require_same_shape(**{"ratio": ratios, name: weights})
    bad = (loss_mask & ~torch.isfinite(weights)).nonzero().flatten()
    if bad.numel():
        ratio, weight = ratios[bad[0]].item(), weights[bad[0]].item()
        raise ValueError(f"{name} must be finite; the ratio {ratio:g} has weight {weight}. Run check_corrector on it.")
