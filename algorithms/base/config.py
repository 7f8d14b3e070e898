"""The configuration that all algorithms share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.util.debug import log_once

from rlhf_algos.algorithms.base import checks
from rlhf_algos.algorithms.base.derived_settings import DerivedSettings
from rlhf_algos.algorithms.base.engine_options import refuse_sampling_options
from rlhf_algos.algorithms.base.evaluation_settings import check_evaluation_config
from rlhf_algos.algorithms.base.paths import (
    absolute_deepspeed_paths,
    absolute_engine_paths,
    absolute_model,
    absolute_paths,
    in_each_choice,
)
from rlhf_algos.algorithms.base.resources import start_ray_if_needed
from rlhf_algos.algorithms.base.saved_source import DECIDING_SETTINGS, SavedBatches
from rlhf_algos.algorithms.base.side_by_side import started_learners
from rlhf_algos.envs import PromptSpace, UnicodeText


class LanguageModelAlgorithmConfig(DerivedSettings):
    """An `AlgorithmConfig` whose environment runners are vLLM engines and whose learners are DeepSpeed ranks.

    Values are checked when the algorithm is built (`build_algo`, or by Tune before a trial is placed), so that
    `tune.grid_search` can stand anywhere until then.
    """

    # ---- sections -----------------------------------------------------------------------------------------------

    def language_model(
        self,
        path: str = NotProvided,
        *,
        dtype: str = NotProvided,
        gradient_checkpointing: bool = NotProvided,
        trust_remote_code: bool = NotProvided,
    ) -> Self:
        """Sets the model and how the trainer holds it.

        Args:
            path: a bundled name ("rlhf_algos/tiny-moe"), a Hugging Face directory, or a hub id ("org/name"). What
                begins with "/", "./", "../" or "~" is a directory, and so is what exists.
            dtype: the trainer's, "float32" or "bfloat16" (with float32 master weights).
            gradient_checkpointing: recompute activations in the backward pass instead of keeping them.
            trust_remote_code: run Python code that ships with the model.
        """
        return self._set(
            language_model_path=in_each_choice(absolute_model, path),
            trainer_dtype=dtype,
            gradient_checkpointing=gradient_checkpointing,
            trust_remote_code=trust_remote_code,
        )

    def sampling(
        self,
        *,
        temperature: float = NotProvided,
        top_p: float = NotProvided,
        top_k: int = NotProvided,
        max_response_tokens: int = NotProvided,
        stop_token_ids: Sequence[int] = NotProvided,
        record_head: int = NotProvided,
        record_routes: bool = NotProvided,
        greedy_evaluation: bool = NotProvided,
        **unsupported: Any,
    ) -> Self:
        """Sets how responses are sampled; see `rlhf_algos.rollout.sampling.SamplingSettings` for each value.

        Args:
            temperature: of the sampler and the trainer.
            top_p: nucleus sampling; the trainer renormalizes on the recorded support.
            top_k: likewise.
            max_response_tokens: longest response.
            stop_token_ids: further ids that end a response.
            record_head: most probable tokens recorded per position.
            record_routes: record the chosen experts.
            greedy_evaluation: evaluations also answer greedily and report `greedy_return_mean`.
            unsupported: none; a known option of vLLM that would break the record is refused with the reason.
        """
        refuse_sampling_options(unsupported)
        self.refuse_unknown_arguments("sampling", unsupported)
        return self._set(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_response_tokens=max_response_tokens,
            stop_token_ids=stop_token_ids,
            record_head=record_head,
            record_routes=record_routes,
            greedy_evaluation=greedy_evaluation,
        )

    def mismatch_injection(
        self,
        *,
        weight_noise: float = NotProvided,
        rounding_bits: int | None = NotProvided,
        lag: int = NotProvided,
    ) -> Self:
        """Makes the sampler worse on purpose, for experiments; see `rlhf_algos.weight_sync.mismatch_injection`.

        Evaluations then report the trainer's policy as always, and the sampler's as `sampler_episode_return_mean` and
        `sampler_greedy_return_mean`.

        Args:
            weight_noise: standard deviation of noise on the sampler's weights, relative to each tensor's
                root mean square.
            rounding_bits: round the sampler's matrices per output channel to this many bits, 2 to 8.
            lag: sample with weights that are this many versions old.
        """
        return self._set(
            injected_weight_noise=weight_noise,
            injected_rounding_bits=rounding_bits,
            injected_lag=lag,
        )

    def env_runners(
        self, *, num_threads_per_env_runner: int | None = NotProvided, weight_channel: Any = NotProvided, **kwargs: Any
    ) -> Self:
        """Sets the rollout actors.

        Args:
            num_threads_per_env_runner: threads of each actor while it samples. None takes `num_cpus_per_env_runner`
                where that is given (at least 1), and otherwise an equal share of all cores of the machine: sampler and
                learner take turns.
            weight_channel: how they get the trainer's weights: "shared_memory" (learners and actors on one machine), a
                `Channel` class, its dotted path, or {"type": one of these, option: value, ...}.
            kwargs: RLlib's own: `num_env_runners`, `num_gpus_per_env_runner`, `num_cpus_per_env_runner` (what Ray
                counts; None for a share that fits every machine), ...
        """
        super().env_runners(**kwargs)
        return self._set(num_threads_per_env_runner=num_threads_per_env_runner, weight_channel=weight_channel)

    def learners(self, *, num_threads_per_learner: int | None = NotProvided, **kwargs: Any) -> Self:
        """Sets the ZeRO ranks.

        Args:
            num_threads_per_learner: threads of each rank while it updates. None takes `num_cpus_per_learner` where that
                is given (at least 1), and otherwise an equal share of all cores of the machine.
            kwargs: RLlib's own: `num_learners`, `num_gpus_per_learner`, `num_cpus_per_learner` (what Ray counts; None
                for a share that fits every machine), ...
        """
        super().learners(**kwargs)
        return self._set(num_threads_per_learner=num_threads_per_learner)

    def vllm(self, **engine_args: Any) -> Self:
        """Sets arguments of the vLLM engine, added to those of earlier calls.

        Args:
            engine_args: any argument of `vllm.EngineArgs` (dtype, max_model_len, quantization, ...) but those that
                other sections set or that would break what is recorded; `dtype` is the trainer's unless given.
        """
        self.vllm_args = {**self.vllm_args, **absolute_engine_paths(engine_args)}
        return self

    def deepspeed(
        self,
        *,
        zero_stage: int = NotProvided,
        offload_optimizer: bool = NotProvided,
        token_budget: int = NotProvided,
        config: Mapping[str, Any] = NotProvided,
    ) -> Self:
        """Sets the training engine.

        Args:
            zero_stage: 1 (optimizer states sharded), 2 (and gradients) or 3 (and parameters).
            offload_optimizer: optimizer states in host memory, stepped on the CPU.
            token_budget: tokens in a micro-batch; a longer sequence gets one of its own.
            config: further DeepSpeed settings, merged and checked.
        """
        return self._set(
            zero_stage=zero_stage,
            offload_optimizer=offload_optimizer,
            token_budget=token_budget,
            deepspeed_config=absolute_deepspeed_paths(config) if isinstance(config, Mapping) else config,
        )

    def training(
        self,
        *,
        prompts_per_iteration: int = NotProvided,
        group_size: int = NotProvided,
        normalize_std: bool = NotProvided,
        loss_reduction: str = NotProvided,
        loss_fixed_length: int | None = NotProvided,
        unscorable_responses: str = NotProvided,
        corrector: Any = NotProvided,
        router_replay: Any = NotProvided,
        adam_betas: Sequence[float] = NotProvided,
        adam_eps: float = NotProvided,
        weight_decay: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training options all algorithms share.

        Args:
            prompts_per_iteration: groups sampled in an iteration.
            group_size: responses to each prompt, at least 2.
            normalize_std: divide advantages by the group's standard deviation (MATH 2.1 or 2.2).
            loss_reduction: "token-mean", "seq-mean-token-mean", "seq-mean-token-sum" or
                "seq-mean-token-sum-norm" (MATH 4.1).
            loss_fixed_length: the length that "seq-mean-token-sum-norm" divides by.
            unscorable_responses: what happens if the environment's reward raises or is no finite number: "stop" the run
                with an error that names the sample, or "leave_out": the sample is not trained on, its group's mean is
                that of the others, and `unscorable_responses_lifetime` counts it.
            corrector: what is done about the difference between trainer and sampler: a name ("none", "is", "tis",
                "icepop", "sequence_tis", "sequence_mask"), {"type": "tis", "high": 3.0}, a `Corrector` or the dotted
                path of a class of your own.
            router_replay: whose experts the trainer's mixture-of-experts layers use: "none" (their own), "r3" (those
                that the sampler chose), "r2" (those of the trainer's own old-policy pass), a `RouterReplay` or the
                dotted path of a class of your own.
            adam_betas: AdamW's.
            adam_eps: AdamW's.
            weight_decay: AdamW's.
            kwargs: RLlib's own: `lr` (a number or a schedule over sampled responses), `grad_clip`, `num_epochs`,
                `minibatch_size` (responses per optimizer step; None takes one step on all), ...
        """
        self.refuse_unknown_arguments("training", kwargs)
        super().training(**kwargs)
        return self._set(
            prompts_per_iteration=prompts_per_iteration,
            group_size=group_size,
            normalize_std=normalize_std,
            loss_reduction=loss_reduction,
            loss_fixed_length=loss_fixed_length,
            unscorable_responses=unscorable_responses,
            corrector=corrector,
            router_replay=router_replay,
            adam_betas=adam_betas,
            adam_eps=adam_eps,
            weight_decay=weight_decay,
        )

    def debugging(self, *, save_batches: str | None = NotProvided, **kwargs: Any) -> Self:
        """Sets RLlib's debugging options, and what is kept of each iteration.

        Args:
            save_batches: folder to which the batch of each training step is written, with everything needed to train on
                it again: `offline_data(input_=folder)` does, `rlhf-algos replay` compares corrections on it. A folder
                that holds another run's batches is refused. A trial of Tune writes into a folder of its own below it.
            kwargs: RLlib's own: `seed`, `log_level`, ...
        """
        super().debugging(**kwargs)
        return self._set(save_batches=in_each_choice(absolute_paths, save_batches))

    def offline_data(
        self,
        *,
        input_: str | Path | Sequence[str | Path] = NotProvided,
        accept_different: Sequence[str] = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Trains on saved batches, one per training step, without starting a rollout actor.

        Advantages are computed again from the saved rewards, by this configuration's rule.

        Args:
            input_: saved batches, or folders of them, in the order of training.
            accept_different: settings in which batches may differ from this configuration ("model", "temperature",
                "top_p", "top_k"); a difference in any other of these four is an error, because it decides log p.
            kwargs: none of RLlib's other options has a meaning here.
        """
        if kwargs:
            raise ValueError(
                f"offline_data({', '.join(kwargs)}): only input_ and accept_different have a meaning for saved batches."
            )
        self.num_env_runners = 0
        self.offline_data_class = SavedBatches
        # Spaces that RLlib otherwise asks of a rollout actor.
        self.observation_space, self.action_space = PromptSpace(), UnicodeText()
        self._is_online = False
        if accept_different is not NotProvided:
            unknown = sorted(set(accept_different) - set(DECIDING_SETTINGS))
            if unknown or isinstance(accept_different, str):
                raise ValueError(
                    f"offline_data(accept_different={accept_different!r}) must be a list of some of "
                    f"{', '.join(DECIDING_SETTINGS)}."
                )
        return self._set(input_=in_each_choice(absolute_paths, input_), accept_different=accept_different)

    def environment(self, *args: Any, **kwargs: Any) -> Self:
        """RLlib's own section: `env` (a Gymnasium id, a `PromptEnv` class or a function) and `env_config`."""
        self.forget_environments()
        return super().environment(*args, **kwargs)

    def evaluation(self, *args: Any, **kwargs: Any) -> Self:
        """RLlib's own section; `evaluation_config` may hold what `EVALUATION_KEYS` lists."""
        self.forget_environments()
        return super().evaluation(*args, **kwargs)

    def _set(self, **values: Any) -> Self:
        for name, value in values.items():
            if value is not NotProvided:
                setattr(self, name, value)
        return self

    # ---- building ----------------------------------------------------------------------------------------------

    def build_learner_group(self, **kwargs: Any) -> LearnerGroup:
        """Starts learners; within an algorithm's `setup` returns those that are starting already."""
        return started_learners() or super().build_learner_group(**kwargs)

    def build_algo(self, *args: Any, **kwargs: Any) -> Any:
        """Starts the algorithm's processes; Ray too, on the loopback address, unless there is one to use."""
        start_ray_if_needed()
        return super().build_algo(*args, **kwargs)

    def validate(self) -> None:
        """Checks every option and combination, and resolves the environment where it is registered: here.

        Raises:
            ValueError: names the option, its value and what to do.
        """
        from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner

        check_evaluation_config(self)
        checks.check_options(self)
        if getattr(self, "env_runner_cls", None) is None:
            self.env_runner_cls = VLLMEnvRunner
        # RLlib would advise to switch its new interfaces off, which nothing here works without.
        log_once(f"{getattr(self.algo_class, '__name__', self.algo_class)}_on_new_api_stack")
        super().validate()
        checks.check_config(self)
        if not self.in_evaluation:
            self.forget_environments()
            evaluation = cast(Self, self.get_evaluation_config_object())
            self._training_env_creator = self.env_creator
            self._evaluation_env_creator = evaluation.env_creator
