"""The trainer: an RLlib Learner whose engine is DeepSpeed ZeRO."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from torch import distributed

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.corrections import Corrector, NoCorrection, correction_metrics, make_corrector
from rlhf_algos.importing import garbage_collection_paused
from rlhf_algos.learner.accelerator import deepspeed
from rlhf_algos.learner.deepspeed_settings import deepspeed_settings
from rlhf_algos.learner.finite import require_finite, require_finite_batch
from rlhf_algos.learner.module import LanguageModelModule
from rlhf_algos.learner.packing import MicroBatch, as_tensor, make_micro_batch, plan_micro_batches
from rlhf_algos.learner.process_group import ensure_process_group, meet_at_one_address
from rlhf_algos.learner.routing import Routing
from rlhf_algos.learner.statistics import TokenStatistics
from rlhf_algos.learner.weights import WeightsOfLearner
from rlhf_algos.objectives import finalize_mismatch, loss_weights, mismatch_sums
from rlhf_algos.objectives.mismatch import MAX_ENTRIES

#: So many responses of each update can be looked at token by token.
SHOWN_SAMPLES = 4


class DeepSpeedLearner(WeightsOfLearner, TorchLearner):
    """Trains a `LanguageModelModule` with ZeRO stage 1, 2 or 3, one rank per Learner.

    An algorithm subclasses it with `compute_loss_for_module`, which maps a micro-batch and its log-probabilities
    to the scalar `sum(per-token loss * loss_weights)` and adds its own statistics.

    Attributes:
        engine: DeepSpeed's.
        statistics: of the update that is running.
        corrector: the configured `Corrector`.
        routing: what is replayed in which pass.
        shown_logprobs: log p0 of the trained tokens of the last update's first samples, by sample id, to be looked at;
            of this rank's samples.
    """

    engine: deepspeed.DeepSpeedEngine
    statistics: TokenStatistics
    corrector: Corrector
    routing: Routing
    shown_logprobs: dict[int, list[float]]
    _kept_gradient: dict[str, torch.Tensor] | None = None

    # ---- building -------------------------------------------------------------------------------------------

    def __init__(self, **kwargs: Any) -> None:
        # RLlib has the ranks meet between this and `build`.
        meet_at_one_address()
        super().__init__(**kwargs)

    def build(self) -> None:
        """Joins the process group, loads the model and wraps it in a DeepSpeed engine."""
        if self._is_built:
            return
        torch.set_num_threads(self.config.threads_per_learner())
        with garbage_collection_paused():
            ensure_process_group()
            super().build()
            self._read_stored_copies()

    def rebuild(self, config: AlgorithmConfig, module_spec: MultiRLModuleSpec) -> None:
        """Starts over with another configuration in the same process and process group. All ranks call it.

        Saves the seconds that a new process needs to import and join. Every attribute of the old run is deleted, also
        those that a subclass made in `build`, so nothing of it is left.
        """
        index, placement_group = self._learner_index, self._placement_group  # type: ignore[has-type]
        self.engine.destroy()
        self.__dict__.clear()
        # Models and engine refer to each other: without this they would stay beside the new ones.
        gc.collect()
        type(self).__init__(self, config=config, module_spec=module_spec)
        self._learner_index, self._placement_group = index, placement_group
        self.build()

    def configure_optimizers_for_module(self, module_id: str, config: AlgorithmConfig | None = None) -> None:
        """Makes the DeepSpeed engine and registers its AdamW, whose learning rate RLlib's schedule drives."""
        config = config or self.config
        module: LanguageModelModule = self.module[module_id]
        parameters = [p for p in module.policy.parameters() if p.requires_grad]
        settings: dict[str, Any] = {
            "lr": 0.0,
            "betas": tuple(config.adam_betas),
            "eps": config.adam_eps,
            "weight_decay": config.weight_decay,
        }
        if config.offload_optimizer:
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            optimizer = DeepSpeedCPUAdam(parameters, adamw_mode=True, **settings)
        else:
            optimizer = torch.optim.AdamW(parameters, fused=True, **settings)
        self.engine, _, _, _ = deepspeed.initialize(
            model=module.policy,
            optimizer=optimizer,
            config=deepspeed_settings(
                zero_stage=config.zero_stage,
                bfloat16=config.trainer_dtype == "bfloat16",
                offload_optimizer=config.offload_optimizer,
                grad_clip=config.grad_clip,
                num_parameters=sum(parameter.numel() for parameter in parameters),
                overrides=config.deepspeed_config,
            ),
            dist_init_required=False,
        )
        object.__setattr__(module, "run", self.engine)
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr
        )

    def _make_modules_ddp_if_necessary(self) -> None:
        """Nothing to do: DeepSpeed reduces the gradients."""

    @property
    def num_ranks(self) -> int:
        """Learners in the process group."""
        return distributed.get_world_size()

    # ---- one iteration --------------------------------------------------------------------------------------

    def update_from_rollouts(
        self, batch: RolloutBatch, *, env_steps_sampled: int, weight_version: int = 0
    ) -> dict[str, float]:
        """Trains on a whole batch; every rank gets the same batch and takes its own part of it.

        Args:
            batch: with advantages.
            env_steps_sampled: responses sampled in this run's lifetime, the time axis of learning-rate schedules.
            weight_version: of the weights before the update, as the driver counts them; another one means another order
                of minibatches.

        Returns:
            Metrics of the whole batch, equal on every rank.

        Raises:
            ValueError: if a reward, advantage or log-probability that is trained on is NaN or infinite; names the
                sample.
        """
        timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: env_steps_sampled}
        self.before_gradient_based_update(timesteps=timesteps)
        self._prepare(batch)
        self._weights_seq_no = weight_version
        optimizer_batches = list(self._optimizer_batches(batch))
        old_logprobs = None
        # With a single step the current policy still is the old one, so its own pass gives log p0.
        if len(optimizer_batches) > 1 or self.routing.needs_old_policy_pass:
            old_logprobs, batch = self._old_policy_pass(batch)
        losses, grad_norms = [], []
        for indices in optimizer_batches:
            token_rows = np.isin(batch.token_sample_index, indices)
            selected = batch.select(indices)
            loss, grad_norm = self._optimizer_step(selected, None if old_logprobs is None else old_logprobs[token_rows])
            losses.append(loss)
            if grad_norm is not None:
                grad_norms.append(grad_norm)
        if grad_norms:
            self._weights_seq_no = weight_version + 1
        metrics = self._finish_metrics(losses, grad_norms)
        self.after_gradient_based_update(timesteps=timesteps)
        return metrics

    def _prepare(self, batch: RolloutBatch) -> None:
        """Checks the batch, and makes the components that one update uses."""
        require_finite_batch(batch)
        self._shown_ids = batch.sample_ids[:SHOWN_SAMPLES].tolist()
        self.shown_logprobs = {}
        self.statistics = TokenStatistics()
        self.corrector = make_corrector(self.config.corrector)
        self.routing = Routing(self.module[DEFAULT_MODULE_ID].replayer, self.config.router_replay, self.statistics)
        self.routing.require_routes(batch)

    def old_logprobs_of(self, batch: RolloutBatch) -> torch.Tensor:
        """log p0 of every trained response token, `[T]` float32; the other rows are 0. All ranks call it."""
        self._prepare(batch)
        return self._old_policy_pass(batch)[0]

    def gradient_of(self, batch: RolloutBatch) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """What an update on the batch would compute, without keeping the step.

        Needs a learner whose learning rate is 0; its weights stay bit-equal.

        Returns:
            The update's metrics, and the full gradient of the last optimizer step by parameter name, before clipping.
        """
        if self.config.lr != 0.0:
            raise ValueError(
                f"gradient_of needs training(lr=0.0), got lr={self.config.lr}: the step would change weights."
            )
        self._kept_gradient = {}
        try:
            metrics = self.update_from_rollouts(batch, env_steps_sampled=0)
            return metrics, self._kept_gradient
        finally:
            self._kept_gradient = None

    def _optimizer_batches(self, batch: RolloutBatch) -> Iterator[np.ndarray]:
        """Sample indices of each optimizer step, in increasing order within a step."""
        size = self.config.minibatch_size or batch.num_samples
        for epoch in range(self.config.num_epochs):
            order = np.arange(batch.num_samples)
            if size < batch.num_samples:
                # The same on every rank, another one in every epoch and iteration.
                if self.config.seed is None:
                    raise ValueError("The learner's configuration has no seed; the algorithm draws one at its start.")
                seed = [self.config.seed, self._weights_seq_no, epoch]
                order = np.random.default_rng(seed).permutation(order)
            for start in range(0, batch.num_samples, size):
                yield np.sort(order[start : start + size])

    def _optimizer_step(self, batch: RolloutBatch, old_logprobs: torch.Tensor | None) -> tuple[float, float | None]:
        """Forward, backward over this rank's micro-batches and one step; None as norm if nothing is trained."""
        sample_index = as_tensor(batch.token_sample_index)
        weights = loss_weights(
            as_tensor(batch.loss_mask),
            sample_index,
            num_samples=batch.num_samples,
            mode=self.config.loss_reduction,
            fixed_length=self.config.loss_fixed_length,
        )
        if not batch.loss_mask.any():
            self.statistics.add_sum("steps_without_trained_token", torch.ones(()) / self.num_ranks)
            return 0.0, None
        total = torch.zeros((), dtype=torch.float64)
        micro_batches = self._micro_batches(batch, weights, old_logprobs, with_head=self.trains_on_head)
        for number, micro_batch in enumerate(micro_batches):
            self.engine.set_gradient_accumulation_boundary(number == len(micro_batches) - 1)
            with self.routing.of(micro_batch, measured=old_logprobs is None):
                fwd_out = self.module[DEFAULT_MODULE_ID].forward_train(micro_batch)
            require_finite("log-probability", fwd_out.logprobs, micro_batch.loss_mask, micro_batch.sample_ids)
            loss = self.compute_loss_for_module(
                module_id=DEFAULT_MODULE_ID, config=self.config, batch=micro_batch, fwd_out=fwd_out
            )
            # The weights already divide by the counts of the whole batch; DeepSpeed averages over ranks.
            self.engine.backward(loss * self.num_ranks)
            total += loss.detach().double().cpu()
        if self._kept_gradient is not None:
            for name, parameter in self._causal_lm().named_parameters():
                self._kept_gradient[name] = deepspeed.utils.safe_get_full_grad(parameter).detach().clone()
        self.engine.step()
        grad_norm = float(self.engine.get_global_grad_norm())
        if not np.isfinite(grad_norm):
            raise ValueError(
                f"The gradient norm is {grad_norm}: the step was not taken, the weights are those before it, nothing "
                "was published to the rollout actors. Lower training(lr=...), or look at the batch's advantages and "
                "log-probabilities (debugging(save_batches=...))."
            )
        return float(self._sum_over_ranks(total)), grad_norm

    def _reduce_device(self) -> str:
        return "cuda" if distributed.get_backend() == "nccl" else "cpu"

    @property
    def trains_on_head(self) -> bool:
        """Whether the loss needs the trainer's log-probabilities of the recorded head."""
        return False

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
        trained_tokens = np.bincount(batch.token_sample_index, weights=batch.loss_mask, minlength=batch.num_samples)
        trained = np.flatnonzero(trained_tokens)
        lengths = (batch.prompt_lengths + batch.response_lengths)[trained]
        plan = plan_micro_batches(lengths, num_ranks=self.num_ranks, token_budget=self.config.token_budget)
        shortest = trained[int(np.argmin(lengths))]
        micro_batches = []
        for chosen in plan[self.rank]:
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
                    routed_experts=self.routing.num_experts,
                    is_dummy=is_dummy,
                    device=self.engine.device,
                )
            )
        return micro_batches

    @torch.no_grad()
    def _old_policy_pass(self, batch: RolloutBatch) -> tuple[torch.Tensor, RolloutBatch]:
        """log p0 of every trained response token, `[T]` float32, and the batch with the routes that updates replay.

        The other rows are 0. All ranks get the result of all samples.
        """
        old_logprobs = torch.zeros(batch.num_response_tokens)
        recorder = self.routing.recorder(batch)
        if batch.loss_mask.any():
            for micro_batch in self._micro_batches(batch, torch.zeros(batch.num_response_tokens), None):
                with self.routing.of(micro_batch, measured=True, old_policy=True) as scope:
                    logprobs = self.module[DEFAULT_MODULE_ID].forward_train(micro_batch).logprobs
                require_finite("log-probability", logprobs, micro_batch.loss_mask, micro_batch.sample_ids)
                if not micro_batch.is_dummy:
                    old_logprobs[micro_batch.rows.cpu()] = logprobs.float().cpu()
                    if recorder is not None and scope is not None:
                        recorder.add(micro_batch, scope.live_routes)
        old_logprobs = self._sum_over_ranks(old_logprobs)
        if recorder is not None:
            batch = dataclasses.replace(batch, routes=recorder.routes(self._sum_over_ranks))
        return old_logprobs, batch

    def _sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        if self.num_ranks == 1:
            return values
        shared = values.to(self._reduce_device())
        distributed.all_reduce(shared)
        return shared.cpu()

    def _finish_metrics(self, losses: list[float], grad_norms: list[float]) -> dict[str, float]:
        metrics, raw = self.statistics.reduce()
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
        metrics["learning_rate"] = self._get_optimizer_lr(self.get_optimizer(DEFAULT_MODULE_ID))
        return metrics

    def add_mismatch(self, old_logprobs: torch.Tensor, batch: MicroBatch) -> None:
        """Adds a micro-batch to the statistics of MATH 9: p0 against q on the trained tokens.

        Call it in `compute_loss_for_module`, with the old policy's log-probabilities `[T]`.
        """
        for sample in self._shown_ids:
            of_sample = (batch.sample_ids == sample) & batch.loss_mask
            if of_sample.any():
                self.shown_logprobs[sample] = old_logprobs.detach()[of_sample].float().tolist()
        sums = mismatch_sums(old_logprobs.detach().float(), batch.rollout_logprobs, batch.loss_mask)
        for name, value in sums.items():
            add = self.statistics.add_max if name in MAX_ENTRIES else self.statistics.add_sum
            add(f"mismatch/{name}", value)

    def correction_weights(self, logprobs: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        """The corrector's weight of each token (MATH 5.2), `[T]`, detached; adds its statistics.

        Args:
            logprobs: `[T]`, the numerator of rho (5.1): log p0 for a clipped surrogate, log p for REINFORCE.
            batch: gives log q.
        """
        correction = self.corrector.correct(
            logprobs.detach() - batch.rollout_logprobs, batch.sample_ids, batch.loss_mask
        )
        corrected = self.corrector != NoCorrection()
        for name, values in correction_metrics(correction, corrected=corrected).items():
            self.statistics.add_mean(name, values, batch.loss_mask)
        signal = batch.advantages.abs()[batch.loss_mask].double()
        kept = correction.weights[batch.loss_mask] != 0
        self.statistics.add_sum("signal/kept", signal[kept].sum())
        self.statistics.add_sum("signal/all", signal.sum())
        return correction.weights
