"""An algorithm of your own: its options, its advantages and its loss of a token, in one file.

    PYTHONPATH=examples rlhf-algos train examples/configs/addition_grpo.yaml --set algorithm=my_algorithm.CISPO

or `python examples/my_algorithm.py`, which trains three iterations on two-digit addition and prints the reward.
Correction weights, the KL penalty and the entropy bonus whose options it declares, the mismatch with the sampler,
packing, ZeRO and routing replay stand around the loss; nothing of them is written here.

The loss is CISPO's (https://arxiv.org/abs/2506.13585): REINFORCE, with the ratio to the old policy as a weight that is
clipped, while the token keeps its gradient.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from torch import Tensor

from rlhf_algos.algorithms.interface import LanguageModelAlgorithm, LanguageModelAlgorithmConfig, LossTokens, TokenLoss
from rlhf_algos.algorithms.options import Option, number
from rlhf_algos.objectives import group_advantages, reinforce_loss


@dataclass(frozen=True)
class ClippedWeight(TokenLoss):
    """`-sg(min(r, 1 + clip_high)) A log p` with r = p / p0."""

    clip_high: float = 2.0

    def __call__(self, tokens: LossTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, and the share of tokens whose weight was clipped."""
        ratio = (tokens.logprobs - tokens.old_logprobs).detach().exp()
        kept = ratio.clamp(max=1.0 + self.clip_high)
        loss = kept * reinforce_loss(tokens.logprobs, tokens.advantages)
        return loss, {"cispo_clipfrac": (ratio > kept).float()}


class CISPOConfig(LanguageModelAlgorithmConfig):
    """Group-relative advantages and a clipped weight."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("training", "clip_high", number(at_least=0), 2.0, "the weight is at most 1 + clip_high."),
    )
    clip_high: float

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or CISPO)

    def training(self, *, clip_high: float = NotProvided, **kwargs: Any) -> Self:
        """Sets the training options.

        Args:
            clip_high: the weight is at most 1 + clip_high.
            kwargs: options that all algorithms share.
        """
        super().training(**kwargs)
        return self._set(clip_high=clip_high)

    def advantages(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        """Distance from the group's mean, over its standard deviation."""
        return group_advantages(rewards, group_ids, normalize_std=self.normalize_std)

    def token_loss(self) -> TokenLoss:
        """The loss with this configuration's bound."""
        return ClippedWeight(self.clip_high)


class CISPO(LanguageModelAlgorithm):
    """The RLlib algorithm; the CLI and Tune know it by its dotted path."""

    @classmethod
    def get_default_config(cls) -> CISPOConfig:
        """A `CISPOConfig` with its defaults."""
        return CISPOConfig()


def main() -> None:
    """Trains three iterations."""
    from rlhf_algos.algorithms.recipes import addition

    algorithm = addition(CISPOConfig(), iterations=3).build_algo()
    try:
        for _ in range(3):
            print(f"reward {algorithm.train()['env_runners']['episode_return_mean']:.3f}", flush=True)
    finally:
        algorithm.stop()


if __name__ == "__main__":
    main()
