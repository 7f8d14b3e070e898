"""One update: a batch becomes optimizer steps, a step micro-batches, and each of them a forward and a backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import distributed

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.learner.accelerator import deepspeed
from rlhf_algos.learner.finite import require_finite, require_finite_batch
from rlhf_algos.learner.loss import MicroBatchLoss
from rlhf_algos.learner.module import LanguageModelModule
from rlhf_algos.learner.packing import MicroBatch, as_tensor, make_micro_batch, plan_micro_batches
from rlhf_algos.learner.process_group import sum_over_ranks
from rlhf_algos.learner.routing import Routing
from rlhf_algos.learner.settings import LearnerSettings
from rlhf_algos.learner.statistics import TokenStatistics
from rlhf_algos.objectives import finalize_mismatch, loss_weights

if TYPE_CHECKING:
    from rlhf_algos.learner.policy import PackedCausalLM

#: So many responses of each update can be looked at token by token.
SHOWN_SAMPLES = 4


@dataclass(frozen=True)
class Trainer:
    """What updates work on.

    Attributes:
        engine: DeepSpeed's, around the policy.
        module: the policy.
        reference: the frozen model of the KL penalty; None without one.
    """

    engine: deepspeed.DeepSpeedEngine
    module: LanguageModelModule
    reference: PackedCausalLM | None


def optimizer_batches(num_samples: int, settings: LearnerSettings, *, version: int) -> Iterator[np.ndarray]:
    """Sample indices of each optimizer step, in increasing order within a step.

    Args:
        num_samples: of the batch.
        settings: epochs, size of a minibatch, and seed.
        version: of the weights before the update, so that each update has another order.

    Raises:
        ValueError: if samples are to be drawn and there is no seed.
    """
    size = settings.minibatch_size or num_samples
    for epoch in range(settings.num_epochs):
        order = np.arange(num_samples)
        if size < num_samples:
            # The same on every rank, another one in every epoch and iteration.
            if settings.seed is None:
                raise ValueError("The learner's configuration has no seed; the algorithm draws one at its start.")
            order = np.random.default_rng([settings.seed, version, epoch]).permutation(order)
        for start in range(0, num_samples, size):
            yield np.sort(order[start : start + size])


class Update:
    """One update on one batch, by all ranks together.

    Args:
        trainer: is changed by it.
        settings: of this update.
        batch: with advantages.
        keep_gradient: keep the last step's.

    Attributes:
        shown_logprobs: log p0 of the trained tokens of the batch's first samples, by sample id; of this rank's.
        gradient: the full gradient of the last optimizer step by parameter name, before clipping, if it was to be kept.

    Raises:
        ValueError: if a reward, an advantage or what the sampler recorded at a trained token is NaN or infinite, or
            routes that are to be replayed are missing.
    """

    def __init__(
        self, trainer: Trainer, settings: LearnerSettings, batch: RolloutBatch, *, keep_gradient: bool = False
    ) -> None:
        require_finite_batch(batch)
        self.shown_logprobs: dict[int, list[float]] = {}
        self.gradient: dict[str, torch.Tensor] = {}
        self._trainer, self._settings, self._batch = trainer, settings, batch
        self._keep_gradient = keep_gradient
        self._shown_ids = batch.sample_ids[:SHOWN_SAMPLES].tolist()
        self._num_ranks, self._rank = distributed.get_world_size(), distributed.get_rank()
        self._statistics = TokenStatistics()
        self._loss = MicroBatchLoss(
            settings,
            reference=trainer.reference,
            vocabulary_size=trainer.module.policy.causal_lm.get_output_embeddings().out_features,
            statistics=self._statistics,
        )
        self._routing = Routing(trainer.module.replayer, settings.router_replay, self._statistics)
        self._routing.require_routes(batch)

    def run(self, *, version: int) -> dict[str, float]:
        """Takes all steps.

        Args:
            version: of the weights before the update.

        Returns:
            Metrics of the whole batch, equal on every rank.

        Raises:
            ValueError: if a log-probability of a trained token or a gradient is NaN or infinite.
        """
        batch = self._batch
        steps = list(optimizer_batches(batch.num_samples, self._settings, version=version))
        old_logprobs = None
        # With a single step the current policy still is the old one, so its own pass gives log p0.
        if len(steps) > 1 or self._routing.needs_old_policy_pass:
            old_logprobs, batch = self.old_policy_pass()
        losses, grad_norms = [], []
        for indices in steps:
            token_rows = np.isin(batch.token_sample_index, indices)
            selected = batch.select(indices)
            loss, grad_norm = self._step(selected, None if old_logprobs is None else old_logprobs[token_rows])
            losses.append(loss)
            if grad_norm is not None:
                grad_norms.append(grad_norm)
        return self._metrics(losses, grad_norms)

    @torch.no_grad()
    def old_policy_pass(self) -> tuple[torch.Tensor, RolloutBatch]:
        """log p0 of every trained response token, `[T]` float32, and the batch with the routes that updates replay.

        The other rows are 0. All ranks get the result of all samples.
        """
        batch = self._batch
        old_logprobs = torch.zeros(batch.num_response_tokens)
        recorder = self._routing.recorder(batch)
        if batch.loss_mask.any():
            for micro_batch in self._micro_batches(batch, torch.zeros(batch.num_response_tokens), None):
                with self._routing.of(micro_batch, measured=True, old_policy=True) as scope:
                    logprobs = self._trainer.module.forward_train(micro_batch).logprobs
                require_finite("log-probability", logprobs, micro_batch.loss_mask, micro_batch.sample_ids)
                if not micro_batch.is_dummy:
                    old_logprobs[micro_batch.rows.cpu()] = logprobs.float().cpu()
                    if recorder is not None and scope is not None:
                        recorder.add(micro_batch, scope.live_routes)
        old_logprobs = sum_over_ranks(old_logprobs)
        if recorder is not None:
            batch = dataclasses.replace(batch, routes=recorder.routes(sum_over_ranks))
        return old_logprobs, batch

    def _step(self, batch: RolloutBatch, old_logprobs: torch.Tensor | None) -> tuple[float, float | None]:
        """Forward, backward over this rank's micro-batches and one step; None as norm if nothing is trained."""
        engine = self._trainer.engine
        weights = loss_weights(
            as_tensor(batch.loss_mask),
            as_tensor(batch.token_sample_index),
            num_samples=batch.num_samples,
            mode=self._settings.loss_reduction,
            fixed_length=self._settings.loss_fixed_length,
        )
        if not batch.loss_mask.any():
            self._statistics.add_sum("steps_without_trained_token", torch.ones(()) / self._num_ranks)
            return 0.0, None
        total = torch.zeros((), dtype=torch.float64)
        micro_batches = self._micro_batches(
            batch, weights, old_logprobs, with_head=self._settings.token_loss.needs_head
        )
        for number, micro_batch in enumerate(micro_batches):
            engine.set_gradient_accumulation_boundary(number == len(micro_batches) - 1)
            with self._routing.of(micro_batch, measured=old_logprobs is None):
                output = self._trainer.module.forward_train(micro_batch)
            require_finite("log-probability", output.logprobs, micro_batch.loss_mask, micro_batch.sample_ids)
            self._show(micro_batch, output.logprobs)
            loss = self._loss(micro_batch, output)
            # The weights already divide by the counts of the whole batch; DeepSpeed averages over ranks.
            engine.backward(loss * self._num_ranks)
            total += loss.detach().double().cpu()
        if self._keep_gradient:
            for name, parameter in self._trainer.module.policy.causal_lm.named_parameters():
                self.gradient[name] = deepspeed.utils.safe_get_full_grad(parameter).detach().clone()
        engine.step()
        grad_norm = float(engine.get_global_grad_norm())
        if not np.isfinite(grad_norm):
            raise ValueError(
                f"The gradient norm is {grad_norm}: the step was not taken, the weights are those before it, nothing "
                "was published to the rollout actors. Lower training(lr=...), or look at the batch's advantages and "
                "log-probabilities (debugging(save_batches=...))."
            )
        return float(sum_over_ranks(total)), grad_norm

    def _micro_batches(
        self,
        batch: RolloutBatch,
        weights: torch.Tensor,
        old_logprobs: torch.Tensor | None,
        *,
        with_head: bool = False,
    ) -> list[MicroBatch]:
        """This rank's micro-batches. Samples without a trained token have no gradient and are left out."""
        token_sample = as_tensor(batch.token_sample_index)
        trained = np.flatnonzero(batch.trained_tokens_of_samples)
        lengths = (batch.prompt_lengths + batch.response_lengths)[trained]
        plan = plan_micro_batches(lengths, num_ranks=self._num_ranks, token_budget=self._settings.token_budget)
        shortest = trained[int(np.argmin(lengths))]
        micro_batches = []
        for chosen in plan[self._rank]:
            is_dummy = not chosen
            # In the batch's order, so that rows picked by mask and by `select` agree.
            indices = np.array([shortest]) if is_dummy else np.sort(trained[chosen])
            rows = torch.isin(token_sample, as_tensor(indices)).nonzero()[:, 0]
            micro_batches.append(
                make_micro_batch(
                    batch.select(indices),
                    rows=rows,
                    loss_weights=weights[rows],
                    old_logprobs=None if old_logprobs is None else old_logprobs[rows],
                    with_head=with_head,
                    routed_experts=self._routing.num_experts,
                    is_dummy=is_dummy,
                    device=self._trainer.engine.device,
                )
            )
        return micro_batches

    def _show(self, batch: MicroBatch, logprobs: torch.Tensor) -> None:
        """Keeps log p0 of the samples that are to be looked at."""
        old_logprobs = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        for sample in self._shown_ids:
            of_sample = (batch.sample_ids == sample) & batch.loss_mask
            if of_sample.any():
                self.shown_logprobs[sample] = old_logprobs[of_sample].float().tolist()

    def _metrics(self, losses: list[float], grad_norms: list[float]) -> dict[str, float]:
        metrics, raw = self._statistics.reduce()
        mismatch = {name.removeprefix("mismatch/"): raw[name] for name in raw if name.startswith("mismatch/")}
        if mismatch:
            metrics |= finalize_mismatch(mismatch)
        if raw.get("signal/all", 0.0) > 0:
            metrics["kept_signal"] = float(raw["signal/kept"] / raw["signal/all"])
        metrics["loss"] = float(np.mean(losses))
        metrics["steps_without_trained_token"] = float(raw.get("steps_without_trained_token", 0.0))
        metrics["num_optimizer_steps"] = float(len(grad_norms))
        if grad_norms:
            metrics["grad_norm"] = float(np.mean(grad_norms))
        return metrics
