"""GRPO: group-relative policy optimization (arXiv 2402.03300)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from torch import Tensor

from rlhf_algos.algorithms.interface import LanguageModelAlgorithm, LanguageModelAlgorithmConfig
from rlhf_algos.algorithms.options import Option, number, one_of, optional
from rlhf_algos.learner.token_loss import LossTokens, TokenLoss
from rlhf_algos.objectives import group_advantages, ppo_clip_loss
from rlhf_algos.objectives.kl_penalty import KlKind


@dataclass(frozen=True)
class ClippedSurrogate(TokenLoss):
    """PPO's clipped surrogate (MATH 3.1 and 3.2)."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def __call__(self, tokens: LossTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """`[T]` loss of each token, and the tokens whose gradient the clip removed."""
        loss, clipped = ppo_clip_loss(
            tokens.logprobs,
            tokens.old_logprobs,
            tokens.advantages,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )
        return loss, {"pg_clipfrac": clipped.float()}


class GRPOConfig(LanguageModelAlgorithmConfig):
    """PPO's clipped surrogate on advantages relative to a group, without a value function.

    Method: sample `group_size` responses to each prompt, take each reward's distance from the group's mean (over
    the group's standard deviation) as the advantage of all tokens of the response, and ascend the clipped
    surrogate (MATH 2 and 3; arXiv 2402.03300). Without clipping bounds ever reached (one optimizer step per
    iteration) this is a policy gradient with a group baseline.

    >>> config = GRPOConfig().environment("rlhf_algos/Addition-v0").training(group_size=4)
    >>> config.group_size, config.clip_low
    (4, 0.2)
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("training", "clip_low", number(at_least=0, at_most=1), 0.2, "the ratio is clipped below 1 - clip_low"),
        Option("training", "clip_high", number(at_least=0), 0.2, "the ratio is clipped above 1 + clip_high"),
        Option(
            "training",
            "dual_clip",
            optional(number(above=1)),
            None,
            "for negative advantages, the surrogate is at least this constant (above 1) times the advantage",
        ),
        Option(
            "training",
            "kl_coefficient",
            number(at_least=0),
            0.0,
            "weight of the KL penalty to the frozen starting model; 0 loads no such model",
        ),
        Option(
            "training", "kl_kind", one_of("k1", "k2", "k3"), "k3", 'estimator of the KL penalty, "k1", "k2" or "k3"'
        ),
        Option("training", "entropy_coefficient", number(at_least=0), 0.0, "weight of the entropy bonus"),
    )
    clip_low: float
    clip_high: float
    dual_clip: float | None
    kl_coefficient: float
    kl_kind: KlKind
    entropy_coefficient: float

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or GRPO)

    def training(
        self,
        *,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        dual_clip: float | None = NotProvided,
        kl_coefficient: float = NotProvided,
        kl_kind: KlKind = NotProvided,
        entropy_coefficient: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training options of GRPO.

        Args:
            clip_low: the ratio is clipped below 1 - clip_low.
            clip_high: the ratio is clipped above 1 + clip_high.
            dual_clip: for negative advantages, the surrogate is at least this constant (above 1) times the advantage.
            kl_coefficient: weight of the KL penalty to the frozen starting model; 0 loads no such model.
            kl_kind: estimator of the KL penalty, "k1", "k2" or "k3".
            entropy_coefficient: weight of the entropy bonus.
            kwargs: options that all algorithms share.
        """
        if "score_centering" in kwargs:
            raise ValueError(
                f"training(score_centering={kwargs['score_centering']!r}): centering is derived for the REINFORCE loss "
                "(MATH 7); the clipped surrogate's gradient is no multiple of the score where the clip bites. Use "
                "ReinforceSCConfig."
            )
        super().training(**kwargs)
        return self._set(
            clip_low=clip_low,
            clip_high=clip_high,
            dual_clip=dual_clip,
            kl_coefficient=kl_coefficient,
            kl_kind=kl_kind,
            entropy_coefficient=entropy_coefficient,
        )

    def advantages(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        """MATH 2.1, or 2.2 without `normalize_std`: `[B]` of rewards `[B]` and group ids `[B]`."""
        return group_advantages(rewards, group_ids, normalize_std=self.normalize_std)

    def token_loss(self) -> TokenLoss:
        """The clipped surrogate with this configuration's bounds."""
        return ClippedSurrogate(self.clip_low, self.clip_high, self.dual_clip)


class GRPO(LanguageModelAlgorithm):
    """The RLlib algorithm; see `GRPOConfig`."""

    @classmethod
    def get_default_config(cls) -> GRPOConfig:
        """A `GRPOConfig` with the library's defaults."""
        return GRPOConfig()
