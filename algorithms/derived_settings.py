"""What the parts of an algorithm read in a configuration: settings that follow from its options."""

from __future__ import annotations

from typing import Any, Self, cast

from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from torch import Tensor

from rlhf_algos.algorithms.evaluation_settings import complete_evaluation_config
from rlhf_algos.algorithms.process_options import ProcessOptions
from rlhf_algos.corrections import make_corrector
from rlhf_algos.envs import EnvCreator, env_creator_for
from rlhf_algos.learner.settings import LearnerSettings
from rlhf_algos.learner.token_loss import TokenLoss
from rlhf_algos.models import resolve_model
from rlhf_algos.rollout.sampling import SamplingSettings
from rlhf_algos.rollout.settings import PlaySettings, RolloutSettings
from rlhf_algos.routing_replay import RouterReplay, make_router_replay
from rlhf_algos.weight_sync.mismatch_injection import MismatchInjection

# Options of an algorithm that are settings of the learner under the same names.
_AROUND_EVERY_LOSS = ("kl_coefficient", "kl_kind", "entropy_coefficient")


class DerivedSettings(ProcessOptions):
    """A configuration that says what its options come to."""

    def model_path(self) -> str:
        """The directory or hub id of the model."""
        return resolve_model(self.language_model_path)

    def sampling_settings(self) -> SamplingSettings:
        """The settings of this configuration; `SamplingSettings.greedy` makes greedy ones of them."""
        full = self.temperature == 0.0
        return SamplingSettings(
            temperature=self.temperature,
            top_p=1.0 if full else self.top_p,
            top_k=0 if full else self.top_k,
            max_response_tokens=self.max_response_tokens,
            stop_token_ids=tuple(self.stop_token_ids),
            record_head=0 if self.in_evaluation else self.record_head,
            record_routes=self.records_routes(),
        )

    @property
    def env_creator(self) -> EnvCreator:
        """Makes one environment: of evaluation in an evaluation's configuration, else of training.

        A name means what it means where the configuration was made: a copy for another process takes that along.
        """
        return env_creator_for(self.env, self.env_config, known=self._known_environments)

    def require_environments(self) -> None:
        """Raises unless the environments of training and of evaluation are known, or can be imported.

        Raises:
            UnregisteredEnv: names the closest id that is known.
            TypeError: if one is no `PromptEnv`.
        """
        for config in (self, self.get_evaluation_config_object()):
            if config is not None:
                _ = config.env_creator

    def get_evaluation_config_object(self) -> Self | None:
        """The configuration of an evaluation: this one with `evaluation_config`; None if this is one already."""
        evaluation = super().get_evaluation_config_object()
        if evaluation is not None and self.env is not None:
            complete_evaluation_config(evaluation, self)
        return evaluation

    def replay(self) -> RouterReplay:
        """Whose experts the trainer's layers use."""
        return make_router_replay(self.router_replay)

    def records_routes(self) -> bool:
        """Whether rollout actors record the experts: on request, or for a replay of them."""
        return self.record_routes or self.replay().uses_rollout_routes

    def mismatch_injected(self) -> MismatchInjection:
        """What is done to the sampler on purpose."""
        return MismatchInjection(
            weight_noise=self.injected_weight_noise,
            rounding_bits=self.injected_rounding_bits,
            lag=self.injected_lag,
        )

    def vllm_engine_args(self) -> dict[str, Any]:
        """Arguments of the engine, the dtype included."""
        return {"dtype": self.trainer_dtype, **self.vllm_args}

    def rollout_settings(self) -> RolloutSettings:
        """What a rollout actor is configured with, asked in its own process.

        Raises:
            ValueError: if there is no seed.
        """
        # An actor of an evaluation trains nothing, and plays the one thing with its own configuration.
        evaluation = self if self.in_evaluation else self.get_evaluation_config_object()
        return RolloutSettings(
            model=self.language_model_path,
            model_path=self.model_path(),
            trust_remote_code=self.trust_remote_code,
            engine_args=self.vllm_engine_args(),
            threads=self.threads_per_env_runner(),
            group_size=self.group_size,
            mismatch_injection=self.mismatch_injected(),
            training=_play_settings(self),
            evaluation=_play_settings(cast(Self, evaluation)),
            evaluation_duration=self.evaluation_duration,
            evaluation_is_due=bool(self.evaluation_interval),
            in_evaluation=self.in_evaluation,
        )

    def advantages(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        """The algorithm's advantages.

        Args:
            rewards: `[B]` float64.
            group_ids: `[B]` int64; each id at least twice.

        Returns:
            `[B]` float64.
        """
        raise NotImplementedError(f"{type(self).__name__} has no advantages(rewards, group_ids): an algorithm's own.")

    def token_loss(self) -> TokenLoss:
        """The algorithm's loss of each token, with its options."""
        raise NotImplementedError(f"{type(self).__name__} has no token_loss(): an algorithm's own.")

    def learner_settings(self) -> LearnerSettings:
        """What a learner reads; `corrector` and `router_replay` are objects in it.

        An algorithm has the KL penalty and the entropy bonus whose options it declares.

        Raises:
            ImportError, TypeError, ValueError: on a corrector, a replay or a model that there is not.
        """
        of_algorithm = {name for name in self.declared_options() if name in _AROUND_EVERY_LOSS}
        return LearnerSettings(
            token_loss=self.token_loss(),
            model=self.model_path(),
            dtype=self.trainer_dtype,
            trust_remote_code=self.trust_remote_code,
            temperature=self.temperature,
            corrector=make_corrector(self.corrector),
            router_replay=self.replay(),
            loss_reduction=self.loss_reduction,
            loss_fixed_length=self.loss_fixed_length,
            lr=self.lr,
            grad_clip=self.grad_clip,
            adam_betas=(self.adam_betas[0], self.adam_betas[1]),
            adam_eps=self.adam_eps,
            weight_decay=self.weight_decay,
            num_epochs=self.num_epochs,
            minibatch_size=self.minibatch_size,
            seed=self.seed,
            zero_stage=self.zero_stage,
            offload_optimizer=self.offload_optimizer,
            token_budget=self.token_budget,
            deepspeed_config=self.deepspeed_config,
            threads=self.threads_per_learner(),
            **{name: getattr(self, name) for name in of_algorithm},
        )

    def get_default_learner_class(self) -> type:
        """The one learner of all algorithms."""
        from rlhf_algos.learner.deepspeed_learner import DeepSpeedLearner

        return DeepSpeedLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """The trainer's module: the language model."""
        from rlhf_algos.learner.module import LanguageModelModule

        return RLModuleSpec(
            module_class=LanguageModelModule,
            model_config={
                "path": self.model_path(),
                "dtype": self.trainer_dtype,
                "gradient_checkpointing": self.gradient_checkpointing,
                "trust_remote_code": self.trust_remote_code,
                "temperature": self.temperature,
                "handles_routes": self.records_routes() or self.replay().replays,
            },
        )


def _play_settings(config: DerivedSettings) -> PlaySettings:
    if config.seed is None:
        raise ValueError("A rollout actor needs debugging(seed=...); an algorithm draws one at its start.")
    return PlaySettings(
        environment=str(config.env),
        create=config.env_creator,
        sampling=config.sampling_settings(),
        unscorable_responses=config.unscorable_responses,
        seed=config.seed,
    )
