"""The sections of a configuration that say what samples: model, engine, actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rlhf_algos.algorithms.derived_settings import DerivedSettings
from rlhf_algos.algorithms.engine_options import refuse_sampling_options
from rlhf_algos.algorithms.paths import absolute_channel_paths, absolute_engine_paths, absolute_model, in_each_choice


class RolloutSections(DerivedSettings):
    """Sections of model and rollout actors."""

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
            top_k: sampling from the most probable tokens; the trainer renormalizes likewise.
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
                `Channel` class, its dotted path, or {"type": one of these, option: value, ...}. Its options
                `parent` and `folder`, and every `Path`, may be relative to the folder that the script was started in.
            kwargs: RLlib's own: `num_env_runners`, `num_gpus_per_env_runner`, `num_cpus_per_env_runner` (what Ray
                counts; None for a share that fits every machine), ...
        """
        super().env_runners(**kwargs)
        weight_channel = in_each_choice(absolute_channel_paths, weight_channel)
        return self._set(num_threads_per_env_runner=num_threads_per_env_runner, weight_channel=weight_channel)

    def vllm(self, **engine_args: Any) -> Self:
        """Sets arguments of the vLLM engine, added to those of earlier calls.

        Args:
            engine_args: any argument of `vllm.EngineArgs` (dtype, max_model_len, quantization, ...) but those that
                other sections set or that would break what is recorded; `dtype` is the trainer's unless given.
        """
        self.vllm_args = {**self.vllm_args, **absolute_engine_paths(engine_args)}
        return self
