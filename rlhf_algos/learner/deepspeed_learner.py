"""The trainer: an RLlib Learner whose engine is DeepSpeed ZeRO."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from rlhf_algos.importing import garbage_collection_paused

# Thousands of modules, which a new process waits for.
with garbage_collection_paused():
    import torch
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.core import DEFAULT_MODULE_ID
    from ray.rllib.core.learner.torch.torch_learner import TorchLearner
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
    from torch import distributed

    from rlhf_algos.batch import RolloutBatch
    from rlhf_algos.learner.accelerator import deepspeed
    from rlhf_algos.learner.engine import make_engine
    from rlhf_algos.learner.module import LanguageModelModule
    from rlhf_algos.learner.process_group import ensure_process_group, meet_at_one_address
    from rlhf_algos.learner.reference import load_reference
    from rlhf_algos.learner.released_models import forget_model
    from rlhf_algos.learner.settings import LearnerSettings
    from rlhf_algos.learner.update import Trainer, Update
    from rlhf_algos.learner.weights import WeightsOfLearner

if TYPE_CHECKING:
    from rlhf_algos.learner.policy import PackedCausalLM


class DeepSpeedLearner(WeightsOfLearner, TorchLearner):
    """Trains a `LanguageModelModule` with ZeRO stage 1, 2 or 3, one rank per Learner; for every algorithm.

    A face: RLlib makes it and calls it, `Update` does the work, and `LearnerSettings` says what work. Of RLlib's
    configuration it asks `learner_settings()`, nothing else.

    Attributes:
        settings: of this run; an update may be given others.
        engine: DeepSpeed's.
        reference: the frozen model of the KL penalty; None without one.
        shown_logprobs: log p0 of the trained tokens of the last update's first samples, by sample id, to be looked at;
            of this rank's samples.
    """

    settings: LearnerSettings
    engine: deepspeed.DeepSpeedEngine
    reference: PackedCausalLM | None
    shown_logprobs: dict[int, list[float]]

    # ---- building -------------------------------------------------------------------------------------------

    def __init__(self, **kwargs: Any) -> None:
        # RLlib has the ranks meet between this and `build`.
        meet_at_one_address()
        super().__init__(**kwargs)

    def build(self) -> None:
        """Joins the process group, loads the model and wraps it in a DeepSpeed engine."""
        if self._is_built:
            return
        # Here, in the learner's own process: the number of threads is a share of its machine's cores.
        self.settings = self.config.learner_settings()
        torch.set_num_threads(self.settings.threads)
        with garbage_collection_paused():
            ensure_process_group()
            super().build()
            self._read_stored_copies()
            self.reference = load_reference(self.settings, self.engine.device)

    def rebuild(self, config: AlgorithmConfig, module_spec: MultiRLModuleSpec) -> None:
        """Starts over with another configuration in the same process and process group. All ranks call it.

        Saves the seconds that a new process needs to import and join. Every attribute of the old run is deleted, also
        those that a subclass made in `build`, so nothing of it is left.
        """
        index, placement_group = self._learner_index, self._placement_group  # type: ignore[has-type]
        self.engine.destroy()
        forget_model(self.engine.module)
        self.__dict__.clear()
        # Models and engine refer to each other: without this they would stay beside the new ones.
        gc.collect()
        type(self).__init__(self, config=config, module_spec=module_spec)
        self._learner_index, self._placement_group = index, placement_group
        self.build()

    def configure_optimizers_for_module(self, module_id: str, config: AlgorithmConfig | None = None) -> None:
        """Makes the DeepSpeed engine and registers its AdamW, whose learning rate RLlib's schedule drives."""
        module: LanguageModelModule = self.module[module_id]
        self.engine, optimizer, parameters = make_engine(module.policy, self.settings)
        object.__setattr__(module, "run", self.engine)
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=self.settings.lr
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
        return self._update(batch, self.settings, env_steps_sampled=env_steps_sampled, weight_version=weight_version)[0]

    def gradient_of(
        self, batch: RolloutBatch, settings: LearnerSettings | None = None
    ) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """What an update on the batch would compute, without keeping the step.

        Needs a learner whose learning rate is 0; its weights stay bit-equal.

        Args:
            batch: with advantages.
            settings: of the update, in place of the learner's own.

        Returns:
            The update's metrics, and the full gradient of the last optimizer step by parameter name, before clipping.
        """
        if self.settings.lr != 0.0:
            raise ValueError(
                f"gradient_of needs training(lr=0.0), got lr={self.settings.lr}: the step would change weights."
            )
        return self._update(batch, settings or self.settings, keep_gradient=True)

    def old_policy_of(
        self, batch: RolloutBatch, settings: LearnerSettings | None = None
    ) -> tuple[torch.Tensor, RolloutBatch]:
        """What an update knows before its first step. All ranks call it.

        Args:
            batch: with advantages.
            settings: in place of the learner's own.

        Returns:
            log p0 of every trained response token, `[T]` float32, 0 in the other rows; and the batch, with the
            trainer's own routes if the settings replay those (MATH 6.5).
        """
        return Update(self._trainer, settings or self.settings, batch).old_policy_pass()

    def old_logprobs_of(self, batch: RolloutBatch, settings: LearnerSettings | None = None) -> torch.Tensor:
        """log p0 of every trained response token, `[T]` float32; the other rows are 0. All ranks call it."""
        return self.old_policy_of(batch, settings)[0]

    @property
    def _trainer(self) -> Trainer:
        return Trainer(self.engine, self.module[DEFAULT_MODULE_ID], self.reference)

    def _update(
        self,
        batch: RolloutBatch,
        settings: LearnerSettings,
        *,
        env_steps_sampled: int = 0,
        weight_version: int = 0,
        keep_gradient: bool = False,
    ) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: env_steps_sampled}
        self.before_gradient_based_update(timesteps=timesteps)
        update = Update(self._trainer, settings, batch, keep_gradient=keep_gradient)
        metrics = update.run(version=weight_version)
        self.shown_logprobs = update.shown_logprobs
        # RLlib's place for it; the driver counts.
        self._weights_seq_no = weight_version + bool(metrics["num_optimizer_steps"])
        metrics["learning_rate"] = self._get_optimizer_lr(self.get_optimizer(DEFAULT_MODULE_ID))
        self.after_gradient_based_update(timesteps=timesteps)
        return metrics, update.gradient

    def compute_loss_for_module(self, **kwargs: Any) -> torch.Tensor:
        """RLlib's way to a loss, which no update takes.

        Raises:
            TypeError: always.
        """
        raise TypeError("update_from_rollouts trains on a RolloutBatch; an algorithm's loss is its token_loss().")
