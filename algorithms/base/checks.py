"""Checks of a configuration as a whole, made before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from rlhf_algos.algorithms.base.evaluation_settings import EVALUATION_KEYS
from rlhf_algos.algorithms.base.options import plain
from rlhf_algos.algorithms.base.paths import (
    absolute_deepspeed_paths,
    absolute_engine_paths,
    absolute_model,
    absolute_paths,
    require_model_folder,
)
from rlhf_algos.algorithms.base.rllib_options import check_rllib_options
from rlhf_algos.algorithms.base.saved_batches import batch_files
from rlhf_algos.corrections import check_corrector, make_corrector
from rlhf_algos.learner.deepspeed_settings import deepspeed_settings
from rlhf_algos.routing_replay import make_router_replay, moe_layers

if TYPE_CHECKING:
    from rlhf_algos.algorithms.base.config import LanguageModelAlgorithmConfig

# Engine arguments that this library sets; another value would break what it records.
_OWNED_ENGINE_ARGS = {
    "model": "language_model(path)",
    "logprobs_mode": "nothing: log-probabilities are those of the distribution that was sampled from",
    "max_logprobs": "sampling(record_head=...)",
    "enable_return_routed_experts": "sampling(record_routes=...)",
    "async_scheduling": "nothing: sampling is synchronous and reproducible",
    "skip_tokenizer_init": "nothing: the rollout actor tokenizes",
    "seed": "debugging(seed=...)",
}


# Engine arguments with which tokens would be drawn from another distribution than the one that is recorded.
_BIASING_ENGINE_ARGS = {
    "logits_processors": "a logits processor changes what is sampled, and the trainer knows nothing of it",
    "speculative_config": "drafted tokens are accepted by a rule of their own",
    "structured_outputs_config": "structured output forbids tokens that the trainer gives probability to",
    "reasoning_parser": "structured output forbids tokens that the trainer gives probability to",
    "override_generation_config": "sampling settings come from sampling(...) alone",
}
# Options of vLLM's SamplingParams that users of other systems look for.
_PENALTY = "it changes a token's probability by what was said before, and the trainer's distribution has no such term"
_FORBIDDING = "it forbids or favours tokens that the trainer gives another probability to"
_BIASING_SAMPLING_OPTIONS = {
    "repetition_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "min_p": "its support depends on the most probable token and is not recorded; use top_p or top_k",
    "logit_bias": _FORBIDDING,
    "bad_words": _FORBIDDING,
    "allowed_token_ids": _FORBIDDING,
    "structured_outputs": _FORBIDDING,
    "guided_decoding": _FORBIDDING,
    "min_tokens": _FORBIDDING,
    "logits_processors": _FORBIDDING,
    "logprobs": "what is recorded is decided by record_head, top_p and top_k",
}


def refuse_sampling_options(options: Mapping[str, Any]) -> None:
    """Raises for every option that `sampling(...)` does not have; says why, where vLLM has one of that name.

    MATH 7: log q must be the log-probability of the distribution that was sampled from, and the trainer must be able to
    form the same one.
    """
    for name, value in options.items():
        if name in _BIASING_SAMPLING_OPTIONS:
            raise ValueError(
                f"sampling({name}={value!r}) is refused: {_BIASING_SAMPLING_OPTIONS[name]}. Every ratio p/q and every "
                "score centering would be taken against a distribution that was not sampled from."
            )
        raise TypeError(f"sampling() got an unexpected keyword argument {name!r}")


def check_options(config: LanguageModelAlgorithmConfig) -> None:
    """Checks each option by itself, and makes its value plain: NumPy's numbers become Python's, paths absolute.

    Raises:
        ValueError: names the option and its value, and says what it must be or what to use instead.
    """
    config.language_model_path = absolute_model(config.language_model_path)
    config.save_batches = absolute_paths(config.save_batches)
    if isinstance(config.vllm_args, Mapping):
        config.vllm_args = absolute_engine_paths(config.vllm_args)
    if isinstance(config.deepspeed_config, Mapping):
        config.deepspeed_config = absolute_deepspeed_paths(config.deepspeed_config)
    options = config.declared_options()
    for name, option in options.items():
        setattr(config, name, option.checked(getattr(config, name)))
    if isinstance(config.evaluation_config, Mapping):
        config.evaluation_config = {
            key: options[key].checked(value, f"evaluation(evaluation_config={{{key!r}: {value!r}}})")
            if key in options and key in EVALUATION_KEYS
            else plain(value)
            for key, value in config.evaluation_config.items()
        }
    check_rllib_options(config)
    _check_input(config)


def _check_input(config: LanguageModelAlgorithmConfig) -> None:
    """Saved batches are there, and are read."""
    if config.offline_data_class is None:
        if config.input_ != "sampler":
            raise ValueError(f"input_={config.input_!r} is read by nothing: call offline_data(input_=...).")
        return
    config.input_ = absolute_paths(config.input_)
    try:
        batch_files(config.input_)
    except (OSError, TypeError) as error:
        raise ValueError(f"offline_data(input_={config.input_!r}): {error}") from error


def check_config(config: LanguageModelAlgorithmConfig) -> None:
    """Raises ValueError on the first option or combination that can't work; its text says what to do."""
    _check_language_model(config)
    _check_rollouts(config)
    _check_training(config)
    _check_rllib_options(config)
    deepspeed_settings(
        zero_stage=config.zero_stage,
        bfloat16=config.trainer_dtype == "bfloat16",
        offload_optimizer=config.offload_optimizer,
        grad_clip=config.grad_clip,
        overrides=config.deepspeed_config,
    )


def _check_language_model(config: LanguageModelAlgorithmConfig) -> None:
    require_model_folder(config.language_model_path)
    config.model_path()


def _check_rollouts(config: LanguageModelAlgorithmConfig) -> None:
    sampling = config.sampling_settings()
    if not config.in_evaluation:
        sampling.for_training()
    for name in config.vllm_args:
        if name in _OWNED_ENGINE_ARGS:
            raise ValueError(f"vllm({name}=...) is set by {_OWNED_ENGINE_ARGS[name]}.")
        if name in _BIASING_ENGINE_ARGS:
            raise ValueError(f"vllm({name}=...) is refused: {_BIASING_ENGINE_ARGS[name]}.")
    config.mismatch_injected()
    if config.env is None:
        raise ValueError("No environment: call environment('rlhf_algos/Addition-v0') or give a PromptEnv class.")


def _check_training(config: LanguageModelAlgorithmConfig) -> None:
    needs_length = config.loss_reduction == "seq-mean-token-sum-norm"
    if needs_length != (config.loss_fixed_length is not None):
        raise ValueError(
            f"training(loss_reduction={config.loss_reduction!r}, loss_fixed_length={config.loss_fixed_length}): the "
            "fixed length belongs to 'seq-mean-token-sum-norm', and only to it."
        )
    check_corrector(make_corrector(config.corrector))
    _check_routes(config)


def _check_routes(config: LanguageModelAlgorithmConfig) -> None:
    """Raises if routes are wanted of a model whose routers can't be found."""
    if not (make_router_replay(config.router_replay).replays or config.records_routes()):
        return
    model_config = AutoConfig.from_pretrained(config.model_path(), trust_remote_code=config.trust_remote_code)
    try:
        moe_layers(model_config, trust_remote_code=config.trust_remote_code)
    except ValueError as error:
        raise ValueError(
            f"training(router_replay={config.router_replay!r}), sampling(record_routes={config.record_routes}) with "
            f"language_model({config.language_model_path!r}): {error}"
        ) from error


def _check_rllib_options(config: LanguageModelAlgorithmConfig) -> None:
    """RLlib options that mean something else here, or nothing."""
    if config.grad_clip is not None and config.grad_clip_by != "global_norm":
        raise ValueError(f"training(grad_clip_by={config.grad_clip_by!r}): DeepSpeed clips by 'global_norm' only.")
    if config.num_env_runners < 1 and config.is_online and not config.in_evaluation:
        raise ValueError(
            f"env_runners(num_env_runners={config.num_env_runners}): at least one rollout actor is needed; a vLLM "
            "engine in the driver's own process would share its threads and memory with everything else there."
        )
    if config.is_multi_agent:
        raise ValueError("multi_agent(...): an algorithm of this library trains one language model.")
    if config.evaluation_parallel_to_training and config.evaluation_num_env_runners < 1:
        raise ValueError("evaluation(evaluation_parallel_to_training=True) needs evaluation_num_env_runners >= 1.")
    if config.evaluation_duration_unit != "episodes":
        raise ValueError(
            f"evaluation(evaluation_duration_unit={config.evaluation_duration_unit!r}): use 'episodes'; "
            "evaluation_duration is the number of problems."
        )
