"""ReinforceSC's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlhf_algos.learner.deepspeed_learner import DeepSpeedLearner
from rlhf_algos.learner.packing import MicroBatch
from rlhf_algos.objectives import (
    ChunkedLogprobs,
    centered_reinforce_loss,
    reduce_loss,
    reinforce_loss,
    score_centering_term,
)

if TYPE_CHECKING:
    from rlhf_algos.algorithms.reinforce_sc.reinforce_sc import ReinforceSCConfig


class ReinforceSCLearner(DeepSpeedLearner):
    """Adds the weighted, centered REINFORCE loss to the DeepSpeed learner."""

    @property
    def trains_on_head(self) -> bool:
        """Centering needs the trainer's log-probabilities of the head."""
        return self.config.score_centering

    def compute_loss_for_module(
        self, *, module_id: str, config: ReinforceSCConfig, batch: MicroBatch, fwd_out: ChunkedLogprobs
    ) -> torch.Tensor:
        """MATH 7.3 per token (or MATH 5 without centering), reduced as MATH 4, minus the entropy bonus."""
        logprobs, entropy, mask = fwd_out.logprobs, fwd_out.entropy, batch.loss_mask
        assert entropy is not None, "the module computes the entropy with every forward pass"
        weights = self.correction_weights(logprobs, batch)
        if config.score_centering:
            loss = centered_reinforce_loss(logprobs, batch.advantages, weights, self._centering(batch, fwd_out))
        else:
            loss = weights * reinforce_loss(logprobs, batch.advantages)
        self.statistics.add_mean("entropy", entropy, mask)
        if config.entropy_coefficient > 0:
            loss = loss - config.entropy_coefficient * entropy
        self.add_mismatch(logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs, batch)
        return reduce_loss(loss, batch.loss_weights)

    def _centering(self, batch: MicroBatch, fwd_out: ChunkedLogprobs) -> torch.Tensor:
        """The differentiable mean of the weighted log-probability under the sampler, `[T]` (MATH 7.6, 7.8 or 7.9)."""
        truncated = batch.support_logprobs is not None
        recorded = batch.support_logprobs if truncated else batch.head_logprobs
        if recorded is None:
            raise ValueError(
                "The batch has no recorded head, which score centering needs. Sample it with ReinforceSCConfig or "
                "sampling(record_head=...), or train with score_centering=False."
            )
        assert fwd_out.head_logprobs is not None
        term, rollout_mass, trainer_mass = score_centering_term(
            fwd_out.head_logprobs,
            recorded,
            self.corrector.weight,
            tail_floor=self.config.tail_floor,
            exact=truncated or recorded.shape[1] >= self._vocabulary_size(),
        )
        self.statistics.add_mean("rollout_head_mass", rollout_mass, batch.loss_mask)
        self.statistics.add_mean("trainer_head_mass", trainer_mass, batch.loss_mask)
        self.statistics.add_mean("sc_term_abs", term.detach().abs(), batch.loss_mask)
        return term

    def _vocabulary_size(self) -> int:
        return self._causal_lm().get_output_embeddings().out_features
