"""A metric of your own: one more value per token beside an algorithm's loss.

    PYTHONPATH=examples rlhf-algos train examples/configs/addition_grpo.yaml --set algorithm=my_metric.MeasuredGRPO

or `python examples/my_metric.py`, which trains one iteration and prints it. What a token loss returns by name becomes
`learners/default_policy/NAME` in every result: the mean over the trained tokens of the whole batch, however it was
split into micro-batches and over ranks.
"""

import math

from torch import Tensor

from rlhf_algos.algorithms.grpo import GRPO, ClippedSurrogate, GRPOConfig
from rlhf_algos.algorithms.interface import LossTokens, TokenLoss


class MeasuredSurrogate(ClippedSurrogate):
    """GRPO's loss, and the fraction of tokens that the policy was sure of."""

    def __call__(self, tokens: LossTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The same loss, and one more metric."""
        loss, metrics = super().__call__(tokens)
        return loss, metrics | {"sure_fraction": (tokens.logprobs.detach() > math.log(0.9)).float()}


class MeasuredConfig(GRPOConfig):
    """GRPO's options."""

    def token_loss(self) -> TokenLoss:
        """The measured loss with GRPO's bounds."""
        return MeasuredSurrogate(self.clip_low, self.clip_high, self.dual_clip)


class MeasuredGRPO(GRPO):
    """The RLlib algorithm."""

    @classmethod
    def get_default_config(cls) -> MeasuredConfig:
        """A `MeasuredConfig` for this algorithm."""
        return MeasuredConfig(algo_class=cls)


def main() -> None:
    """Trains one iteration."""
    from rlhf_algos.algorithms.recipes import addition

    algorithm = addition(MeasuredConfig(algo_class=MeasuredGRPO), iterations=1).build_algo()
    try:
        print(f"sure_fraction {algorithm.train()['learners']['default_policy']['sure_fraction']:.3f}")
    finally:
        algorithm.stop()


if __name__ == "__main__":
    main()
