"""RLOO: REINFORCE with a leave-one-out baseline (arXiv 2402.14740)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from torch import Tensor

from rlhf_algos.algorithms.interface import LanguageModelAlgorithm, LanguageModelAlgorithmConfig
from rlhf_algos.algorithms.options import Option, flag, number
from rlhf_algos.learner.token_loss import LossTokens, TokenLoss
from rlhf_algos.objectives import group_advantages, reinforce_loss


@dataclass(frozen=True)
class Reinforce(TokenLoss):
    """`-A log p` of each token (MATH 3.4); the weight is of `sg(p) / q` (MATH 5.1)."""

    corrects: ClassVar[Literal["old", "current"]] = "current"

    def __call__(self, tokens: LossTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """`[T]` loss of each token."""
        return reinforce_loss(tokens.logprobs, tokens.advantages), {}


class RLOOConfig(LanguageModelAlgorithmConfig):
    """REINFORCE, each reward compared with the mean of the others of its group.

    Method: the advantage of a response is its reward less the mean reward of the *other* responses to the prompt, a
    baseline that does not contain the sample (MATH 2.3), and the loss of its tokens `-A log p` (MATH 3.4). Any
    corrector can weigh them, by p / q of now (MATH 5.1). The paper sums over a response:
    `loss_reduction="seq-mean-token-sum"`.

    >>> config = RLOOConfig().environment("rlhf_algos/Addition-v0").training(corrector="tis")
    >>> config.normalize_std, config.loss_reduction
    (False, 'token-mean')
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("training", "entropy_coefficient", number(at_least=0), 0.0, "weight of the entropy bonus"),
        # The shared option with another default.
        Option("training", "normalize_std", flag(), False, "divide advantages by the group's standard deviation"),
    )
    entropy_coefficient: float

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or RLOO)

    def training(self, *, entropy_coefficient: float = NotProvided, **kwargs: Any) -> Self:
        """Sets the training options of RLOO.

        Args:
            entropy_coefficient: weight of the entropy bonus.
            kwargs: options that all algorithms share.
        """
        super().training(**kwargs)
        return self._set(entropy_coefficient=entropy_coefficient)

    def advantages(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        """MATH 2.3: `[B]` of rewards `[B]` and group ids `[B]`."""
        return group_advantages(rewards, group_ids, normalize_std=False, leave_one_out=True)

    def token_loss(self) -> TokenLoss:
        """The REINFORCE loss."""
        return Reinforce()

    def validate(self) -> None:
        """Checks that the baseline stays independent of the sample, after each option by itself."""
        super().validate()
        if self.normalize_std:
            raise ValueError(
                "training(normalize_std=True): the group's standard deviation contains the sample that RLOO's baseline "
                "leaves out. Use normalize_std=False, or GRPOConfig."
            )


class RLOO(LanguageModelAlgorithm):
    """The RLlib algorithm; see `RLOOConfig`."""

    @classmethod
    def get_default_config(cls) -> RLOOConfig:
        """An `RLOOConfig` with the library's defaults."""
        return RLOOConfig()
