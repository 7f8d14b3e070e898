"""GRPO's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlhf_algos.learner.deepspeed_learner import DeepSpeedLearner
from rlhf_algos.learner.module import DTYPES, logprobs_of_responses
from rlhf_algos.learner.packing import MicroBatch
from rlhf_algos.objectives import ChunkedLogprobs, kl_estimate, ppo_clip_loss, reduce_loss

if TYPE_CHECKING:
    from rlhf_algos.algorithms.grpo.grpo import GRPOConfig
    from rlhf_algos.learner.policy import PackedCausalLM


class GRPOLearner(DeepSpeedLearner):
    """Adds the clipped surrogate, the KL penalty and the entropy bonus to the DeepSpeed learner."""

    reference: PackedCausalLM | None = None

    def build(self) -> None:
        """Builds the learner, and loads the frozen reference model if the KL penalty needs it."""
        if self._is_built:
            return
        super().build()
        if self.config.kl_coefficient > 0:
            from rlhf_algos.learner.policy import load_policy

            reference = load_policy(
                self.config.model_path(),
                dtype=DTYPES[self.config.trainer_dtype],
                trust_remote_code=self.config.trust_remote_code,
            )
            self.reference = reference.requires_grad_(False).to(self.engine.device)

    def compute_loss_for_module(
        self, *, module_id: str, config: GRPOConfig, batch: MicroBatch, fwd_out: ChunkedLogprobs
    ) -> torch.Tensor:
        """MATH 3.1 and 3.2 per token times the weight of MATH 5, plus penalty, minus bonus, reduced as MATH 4."""
        logprobs, entropy, mask = fwd_out.logprobs, fwd_out.entropy, batch.loss_mask
        assert entropy is not None, "the module computes the entropy with every forward pass"
        old_logprobs = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        loss, clipped = ppo_clip_loss(
            logprobs,
            old_logprobs,
            batch.advantages,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
        )
        loss = self.correction_weights(old_logprobs, batch) * loss
        self.statistics.add_mean("pg_clipfrac", clipped.float(), mask)
        self.statistics.add_mean("entropy", entropy, mask)
        if config.entropy_coefficient > 0:
            loss = loss - config.entropy_coefficient * entropy
        if self.reference is not None:
            kl = kl_estimate(logprobs, self._reference_logprobs(batch), kind=config.kl_kind)
            self.statistics.add_mean("reference_kl", kl, mask)
            loss = loss + config.kl_coefficient * kl
        self.add_mismatch(old_logprobs, batch)
        return reduce_loss(loss, batch.loss_weights)

    @torch.no_grad()
    def _reference_logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """log p of the frozen model, `[T]`, on the support that the batch was sampled from, like the policy's."""
        assert self.reference is not None
        return logprobs_of_responses(
            self.reference, batch, temperature=self.config.temperature, with_entropy=False
        ).logprobs
