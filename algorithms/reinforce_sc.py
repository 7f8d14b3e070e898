"""REINFORCE with score centering (arXiv 2609.20807)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from torch import Tensor

from rlhf_algos.algorithms.interface import LanguageModelAlgorithm, LanguageModelAlgorithmConfig
from rlhf_algos.algorithms.options import Option, flag, number, whole
from rlhf_algos.learner.token_loss import LossTokens, TokenLoss
from rlhf_algos.objectives import (
    centered_reinforce_loss,
    group_advantages,
    reinforce_loss,
    score_centering_term,
)
from rlhf_algos.rollout.sampling import SamplingSettings


@dataclass(frozen=True)
class CenteredReinforce(TokenLoss):
    """MATH 7.3 per token, or REINFORCE without centering."""

    score_centering: bool = True
    tail_floor: float = 1e-6
    corrects: ClassVar[Literal["old", "current"]] = "current"

    @property
    def weighs_itself(self) -> bool:
        """Centering weighs the sampled token and the head apart."""
        return self.score_centering

    @property
    def needs_head(self) -> bool:
        """Centering needs the trainer's log-probabilities of the head."""
        return self.score_centering

    def __call__(self, tokens: LossTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """`[T]` loss of each token, and with centering the masses of the head and the size of the term.

        Raises:
            ValueError: if no head was recorded.
        """
        if not self.score_centering:
            return reinforce_loss(tokens.logprobs, tokens.advantages), {}
        if tokens.head_logprobs is None or tokens.rollout_head_logprobs is None:
            raise ValueError(
                "The batch has no recorded head, which score centering needs. Sample it with ReinforceSCConfig or "
                "sampling(record_head=...), or train with score_centering=False."
            )
        assert tokens.weights is not None
        term, rollout_mass, trainer_mass = score_centering_term(
            tokens.head_logprobs,
            tokens.rollout_head_logprobs,
            tokens.corrector.weight,
            tail_floor=self.tail_floor,
            exact=tokens.head_is_complete,
        )
        loss = centered_reinforce_loss(tokens.logprobs, tokens.advantages, tokens.weights, term)
        return loss, {
            "rollout_head_mass": rollout_mass,
            "trainer_head_mass": trainer_mass,
            "sc_term_abs": term.detach().abs(),
        }


class ReinforceSCConfig(LanguageModelAlgorithmConfig):
    """REINFORCE on group-relative advantages, with the mean of the score under the sampler taken out.

    Method: the loss of a token is `-A w log p` with `w = f(sg(p) / q)` of any token-wise corrector (MATH 5), less the
    expectation of the same thing over the sampler's distribution (MATH 7.3; arXiv 2609.20807). Without a mismatch that
    expectation has no gradient; with one, it is a drift of every token that no reward asked for. Three forms:

    * the sampler records its `head_top_k` most probable tokens, and its tail is modelled by the trainer's (7.5 to 7.7);
    * with a head that holds the whole vocabulary the form is exact (7.8);
    * with `top_p` or `top_k` sampling the whole support is recorded, and the form is exact on it (7.9).

    Centering removes a drift, not the bias: which distribution the advantages were averaged over stays the sampler's.
    Advantages are not divided by the group's standard deviation and all tokens weigh the same ("token-mean").

    >>> config = ReinforceSCConfig().environment("rlhf_algos/Addition-v0").training(corrector="tis")
    >>> config.score_centering, config.head_top_k, config.normalize_std, config.loss_reduction
    (True, 128, False, 'token-mean')
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option(
            "training",
            "score_centering",
            flag(),
            True,
            "take the score's mean under the sampler out; False is plain weighted REINFORCE",
        ),
        Option(
            "training",
            "head_top_k",
            whole(at_least=1),
            128,
            "most probable tokens whose log q the sampler records for it",
        ),
        Option(
            "training",
            "tail_floor",
            number(above=0, below=1),
            1e-6,
            "least mass outside the head, of trainer and sampler (MATH 7.7)",
        ),
        Option("training", "entropy_coefficient", number(at_least=0), 0.0, "weight of the entropy bonus"),
        # The shared option with another default.
        Option(
            "training",
            "normalize_std",
            flag(),
            False,
            "divide advantages by the group's standard deviation (MATH 2.1 or 2.2)",
        ),
    )
    score_centering: bool
    head_top_k: int
    tail_floor: float
    entropy_coefficient: float

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or ReinforceSC)

    def training(
        self,
        *,
        score_centering: bool = NotProvided,
        head_top_k: int = NotProvided,
        tail_floor: float = NotProvided,
        entropy_coefficient: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training options of ReinforceSC.

        Args:
            score_centering: take the score's mean under the sampler out; False is plain weighted REINFORCE.
            head_top_k: most probable tokens whose log q the sampler records for it.
            tail_floor: least mass outside the head, of trainer and sampler (MATH 7.7).
            entropy_coefficient: weight of the entropy bonus.
            kwargs: options that all algorithms share.
        """
        for name in ("clip_low", "clip_high", "dual_clip"):
            if name in kwargs:
                raise ValueError(
                    f"training({name}={kwargs[name]!r}): ReinforceSC has no clipped surrogate; its bounds are those "
                    "of the corrector, as in "
                    "training(corrector={'type': 'tis', 'high': 2.0}). Use GRPOConfig for PPO-clip."
                )
        super().training(**kwargs)
        return self._set(
            score_centering=score_centering,
            head_top_k=head_top_k,
            tail_floor=tail_floor,
            entropy_coefficient=entropy_coefficient,
        )

    def sampling_settings(self) -> SamplingSettings:
        """The shared settings, with the head that centering needs."""
        settings = super().sampling_settings()
        if self.in_evaluation or not self.score_centering or settings.truncates:
            return settings
        return settings.with_head(self.head_top_k)

    def advantages(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        """MATH 2.2, or 2.1 with `normalize_std`: `[B]` of rewards `[B]` and group ids `[B]`."""
        return group_advantages(rewards, group_ids, normalize_std=self.normalize_std)

    def token_loss(self) -> TokenLoss:
        """The weighted loss, centered or not."""
        return CenteredReinforce(self.score_centering, self.tail_floor)

    def validate(self) -> None:
        """Checks the combinations that centering does not hold for, after each option by itself."""
        super().validate()
        if self.score_centering:
            self._require_what_centering_needs()

    def _require_what_centering_needs(self) -> None:
        """Refuses the combinations for which MATH 7 does not hold."""
        corrector = self.learner_settings().corrector
        if not corrector.elementwise:
            raise ValueError(
                f"training(corrector={self.corrector!r}, score_centering=True): the weight of {corrector} is no "
                "elementwise function of a token's ratio, so the weights of the tokens that were not sampled are "
                "unknown. Use a token-wise corrector, or score_centering=False."
            )
        if self.normalize_std:
            raise ValueError(
                "training(normalize_std=True, score_centering=True): dividing by the group's standard deviation "
                "weights groups by how rare their rewards are, which the covariance of MATH 7.1 does not describe. "
                "Use normalize_std=False, or score_centering=False."
            )
        if self.loss_reduction != "token-mean":
            raise ValueError(
                f"training(loss_reduction={self.loss_reduction!r}, score_centering=True): the centered score has mean "
                "0 per token; weighting tokens by the length of their response breaks that. Use 'token-mean', or "
                "score_centering=False."
            )
        if self.record_head not in (0, self.head_top_k):
            raise ValueError(
                f"sampling(record_head={self.record_head}) and training(head_top_k={self.head_top_k}) both size the "
                "recorded head; set head_top_k only."
            )


class ReinforceSC(LanguageModelAlgorithm):
    """The RLlib algorithm; see `ReinforceSCConfig`."""

    @classmethod
    def get_default_config(cls) -> ReinforceSCConfig:
        """A `ReinforceSCConfig` with the library's defaults."""
        return ReinforceSCConfig()
