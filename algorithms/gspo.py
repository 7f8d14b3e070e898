"""GSPO: group sequence policy optimization (arXiv 2507.18071)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.interface import LanguageModelAlgorithm
from rlhf_algos.algorithms.options import Option, number, one_of
from rlhf_algos.learner.token_loss import LossTokens, TokenLoss
from rlhf_algos.objectives import sequence_clip_loss


@dataclass(frozen=True)
class SequenceSurrogate(TokenLoss):
    """The surrogate with one ratio per response (MATH 3.8)."""

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    response_metrics: ClassVar[frozenset[str]] = frozenset({"pg_clipfrac"})

    def __call__(self, tokens: LossTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """`[T]` loss of each token, and the responses whose gradient the clip removed."""
        loss, clipped = sequence_clip_loss(
            tokens.logprobs,
            tokens.old_logprobs,
            tokens.advantages,
            tokens.sample_ids,
            tokens.loss_mask,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )
        return loss, {"pg_clipfrac": clipped.float()}


class GSPOConfig(GRPOConfig):
    """GRPO whose ratio, clip and loss are of whole responses.

    Method: advantages as GRPO's (MATH 2.1); the ratio is the geometric mean of `p / p0` over a response's trained
    tokens, so a response is followed or clipped as one (MATH 3.5 to 3.8). The ratio accounts for the way from p0 to p;
    a corrector, of tokens or of responses, for that from q to p0 (MATH 5.1).

    >>> config = GSPOConfig().environment("rlhf_algos/Addition-v0")
    >>> config.clip_low, config.clip_high, config.loss_reduction
    (0.0003, 0.0004, 'seq-mean-token-mean')
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        # Shared options and GRPO's with other defaults.
        Option("training", "clip_low", number(at_least=0, at_most=1), 3e-4, "the ratio is clipped below 1 - clip_low"),
        Option("training", "clip_high", number(at_least=0), 4e-4, "the ratio is clipped above 1 + clip_high"),
        Option(
            "training",
            "loss_reduction",
            one_of("seq-mean-token-mean"),
            "seq-mean-token-mean",
            "how tokens make one loss",
            why="the loss is one number per response, averaged over responses (MATH 3.6)",
        ),
    )

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or GSPO)

    def token_loss(self) -> TokenLoss:
        """The surrogate of whole responses with this configuration's bounds."""
        return SequenceSurrogate(self.clip_low, self.clip_high)

    def validate(self) -> None:
        """Refuses the bound that is one of a token's ratio, after each option by itself."""
        super().validate()
        if self.dual_clip is not None:
            raise ValueError(
                f"training(dual_clip={self.dual_clip!r}): the bound of MATH 3.2 is one of the ratio of a token; GSPO "
                "has one ratio per response. Use GRPOConfig."
            )


class GSPO(LanguageModelAlgorithm):
    """The RLlib algorithm; see `GSPOConfig`."""

    @classmethod
    def get_default_config(cls) -> GSPOConfig:
        """A `GSPOConfig` with the library's defaults."""
        return GSPOConfig()
