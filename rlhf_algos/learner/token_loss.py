"""The part of an update that belongs to an algorithm: the loss of each token.

What every loss has around it (correction weights, KL penalty, entropy bonus, statistics, reduction) stands once, in
`loss.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from rlhf_algos.corrections import Corrector


@dataclass(frozen=True)
class LossTokens:
    """What a loss is made of: the response tokens of one micro-batch. All samples in it are whole.

    Attributes:
        logprobs: `[T]` float32, log p; has the gradient.
        old_logprobs: `[T]` float32, log p0, detached.
        rollout_logprobs: `[T]` float32, log q; 0 at untrained tokens.
        advantages: `[T]` float32, that of the response.
        sample_ids: `[T]` int64, response of each token.
        loss_mask: `[T]` bool, trained tokens. What a loss makes of the others is never read.
        corrector: what makes the weights that the loss is multiplied by (MATH 5.2).
        weights: `[T]` float32, detached: these weights, of the ratio that the loss asks for (MATH 5.1); None unless the
            loss weighs itself.
        head_logprobs: `[T, k]` float32, log p of the recorded head or support, with gradient; None unless the loss
            needs it and the batch has it.
        rollout_head_logprobs: `[T, k]` float32, log q of the same, -inf where a support is filled up.
        head_is_complete: no token outside of the head can have been sampled.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    sample_ids: Tensor
    loss_mask: Tensor
    corrector: Corrector
    weights: Tensor | None = None
    head_logprobs: Tensor | None = None
    rollout_head_logprobs: Tensor | None = None
    head_is_complete: bool = False


class TokenLoss(Protocol):
    """An algorithm's loss of each token; derive from it as a frozen dataclass with the algorithm's options.

    ::

        @dataclass(frozen=True)
        class Plain(TokenLoss):
            def __call__(self, tokens):
                return reinforce_loss(tokens.logprobs, tokens.advantages), {}
    """

    #: Whose probability stands above q in the ratio of the weights (MATH 5.1): "old" is p0, for a loss that follows the
    #: way from p0 to p by a ratio of its own; "current" is sg(p).
    corrects: ClassVar[Literal["old", "current"]] = "old"
    #: Metrics in which each response counts once, with its mean over its trained tokens.
    response_metrics: ClassVar[frozenset[str]] = frozenset()

    @property
    def weighs_itself(self) -> bool:
        """Whether it applies the corrector's weights; else each token's loss is multiplied by its weight afterwards."""
        return False

    @property
    def needs_head(self) -> bool:
        """Whether it wants the trainer's log-probabilities of the recorded head."""
        return False

    def __call__(self, tokens: LossTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss to be minimized and what is to be measured.

        Args:
            tokens: of one micro-batch.

        Returns:
            `[T]` loss of each token; and by name `[T]` values whose means over the trained tokens of the whole batch
            are the metrics. A name of another metric of the learner (docs/metrics.md) is refused; one that only some
            micro-batches have is a mean over those.
        """
        ...
