"""The loss of a micro-batch: the algorithm's token loss, and around it what every algorithm has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rlhf_algos.corrections import NoCorrection, correction_metrics
from rlhf_algos.learner.packing import MicroBatch
from rlhf_algos.learner.reference import reference_logprobs
from rlhf_algos.learner.settings import LearnerSettings
from rlhf_algos.learner.statistics import TokenStatistics
from rlhf_algos.learner.token_loss import LossTokens
from rlhf_algos.metrics import LEARNER, is_listed, metric_of
from rlhf_algos.objectives import ChunkedLogprobs, kl_estimate, mismatch_sums, reduce_loss
from rlhf_algos.objectives.mismatch import MAX_ENTRIES

if TYPE_CHECKING:
    from rlhf_algos.learner.policy import PackedCausalLM


class MicroBatchLoss:
    """Correction weights, token loss, entropy bonus, KL penalty and reduction, and the statistics of each.

    Args:
        settings: the token loss, its corrector, and the coefficients.
        reference: the frozen model of the KL penalty; None without one.
        vocabulary_size: of the trainer's head.
        statistics: gets what is measured.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        *,
        reference: PackedCausalLM | None,
        vocabulary_size: int,
        statistics: TokenStatistics,
    ) -> None:
        self._settings = settings
        self._reference = reference
        self._vocabulary_size = vocabulary_size
        self._statistics = statistics

    def __call__(self, batch: MicroBatch, output: ChunkedLogprobs) -> torch.Tensor:
        """`sum_t u_t loss_t` (MATH 4.1): this micro-batch's share of the loss of the optimizer batch.

        Args:
            batch: the tokens.
            output: of the forward pass on them, with the entropy.
        """
        settings = self._settings
        tokens = self._tokens(batch, output)
        weights = self._weights(tokens)
        if settings.token_loss.weighs_itself:
            tokens = replace(tokens, weights=weights)
        loss, metrics = settings.token_loss(tokens)
        if not settings.token_loss.weighs_itself:
            loss = weights * loss
        self._add_metrics(metrics, batch)
        assert output.entropy is not None, "the module computes the entropy with every forward pass"
        self._statistics.add_mean("entropy", output.entropy, batch.loss_mask)
        if settings.entropy_coefficient > 0:
            loss = loss - settings.entropy_coefficient * output.entropy
        if self._reference is not None:
            reference = reference_logprobs(self._reference, batch, temperature=settings.temperature)
            kl = kl_estimate(output.logprobs, reference, kind=settings.kl_kind)
            self._statistics.add_mean("reference_kl", kl, batch.loss_mask)
            loss = loss + settings.kl_coefficient * kl
        self._add_mismatch(tokens)
        return reduce_loss(loss, batch.loss_weights)

    def _tokens(self, batch: MicroBatch, output: ChunkedLogprobs) -> LossTokens:
        current = output.logprobs.detach()
        old = current if batch.old_logprobs is None else batch.old_logprobs
        tokens = LossTokens(
            logprobs=output.logprobs,
            old_logprobs=old,
            rollout_logprobs=batch.rollout_logprobs,
            advantages=batch.advantages,
            sample_ids=batch.sample_ids,
            loss_mask=batch.loss_mask,
            corrector=self._settings.corrector,
        )
        return self._with_head(tokens, batch, output) if self._settings.token_loss.needs_head else tokens

    def _with_head(self, tokens: LossTokens, batch: MicroBatch, output: ChunkedLogprobs) -> LossTokens:
        """The tokens with the recorded support (MATH 7.9), or head (7.6, 7.8), if the batch has one."""
        is_support = batch.support_logprobs is not None
        recorded = batch.support_logprobs if is_support else batch.head_logprobs
        if recorded is None:
            return tokens
        assert output.head_logprobs is not None
        return replace(
            tokens,
            head_logprobs=output.head_logprobs,
            rollout_head_logprobs=recorded,
            head_is_complete=is_support or recorded.shape[1] >= self._vocabulary_size,
        )

    def _weights(self, tokens: LossTokens) -> torch.Tensor:
        """The corrector's weight of each token (MATH 5.2), `[T]`, detached; adds its statistics."""
        corrector, statistics = self._settings.corrector, self._statistics
        # Of rho (MATH 5.1).
        numerators = {"old": tokens.old_logprobs, "current": tokens.logprobs.detach()}
        numerator = numerators[self._settings.token_loss.corrects]
        correction = corrector.correct(numerator - tokens.rollout_logprobs, tokens.sample_ids, tokens.loss_mask)
        corrected = corrector != NoCorrection()
        for name, values in correction_metrics(correction, corrected=corrected).items():
            statistics.add_mean(name, values, tokens.loss_mask)
        signal = tokens.advantages.abs()[tokens.loss_mask].double()
        kept = correction.weights[tokens.loss_mask] != 0
        statistics.add_sum("signal/kept", signal[kept].sum())
        statistics.add_sum("signal/all", signal.sum())
        return correction.weights

    def _add_metrics(self, metrics: Mapping[str, torch.Tensor], batch: MicroBatch) -> None:
        """Adds what the token loss measures."""
        for name, values in metrics.items():
            _require_own_name(name)
            of_response = name in self._settings.token_loss.response_metrics
            self._statistics.add_mean(
                name, values, batch.loss_mask, sample_ids=batch.sample_ids if of_response else None
            )

    def _add_mismatch(self, tokens: LossTokens) -> None:
        """Adds a micro-batch to the statistics of MATH 9: p0 against q on the trained tokens."""
        sums = mismatch_sums(tokens.old_logprobs.float(), tokens.rollout_logprobs, tokens.loss_mask)
        for name, value in sums.items():
            add = self._statistics.add_max if name in MAX_ENTRIES else self._statistics.add_sum
            add(f"mismatch/{name}", value)


def _require_own_name(name: str) -> None:
    """Raises ValueError unless a token loss may call a metric so."""
    key = f"{LEARNER}/{name}"
    if "/" in name or (is_listed(key) and not metric_of(key).of_token_loss):
        why = "has a slash" if "/" in name else "is the name of another metric of the learner (docs/metrics.md)"
        raise ValueError(f"The token loss returned a metric {name!r}, which {why}. Choose another name.")
