"""Checks of a configuration as a whole, made before anything is started."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from rlhf_algos.corrections import check_corrector, make_corrector
from rlhf_algos.learner.deepspeed_settings import deepspeed_settings
from rlhf_algos.objectives.reduction import REDUCTION_MODES
from rlhf_algos.routing_replay import make_router_replay, moe_layers

if TYPE_CHECKING:
    from rlhf_algos.algorithms.base.config import LanguageModelAlgorithmConfig

DTYPES = ("float32", "bfloat16")

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


def _require(valid: bool, option: str, value: Any, wanted: str) -> None:
    if not valid:
        raise ValueError(f"{option}={value!r} must be {wanted}.")


def _check_language_model(config: LanguageModelAlgorithmConfig) -> None:
    config.model_path()
    _require(config.trainer_dtype in DTYPES, "language_model(dtype", config.trainer_dtype, f"one of {DTYPES})")


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
    _require(
        _whole(config.group_size) and config.group_size >= 2,
        "training(group_size",
        config.group_size,
        "a whole number of at least 2: an advantage compares the responses to one prompt)",
    )
    for name in ("prompts_per_iteration", "num_epochs", "token_budget"):
        value = getattr(config, name)
        _require(_whole(value) and value >= 1, name, value, "a whole number of at least 1")
    size = config.minibatch_size
    _require(
        size is None or (_whole(size) and size >= 1),
        "training(minibatch_size",
        size,
        "None or a whole number of at least 1)",
    )
    _require(
        config.loss_reduction in REDUCTION_MODES,
        "training(loss_reduction",
        config.loss_reduction,
        f"one of {REDUCTION_MODES})",
    )
    needs_length = config.loss_reduction == "seq-mean-token-sum-norm"
    if needs_length != (config.loss_fixed_length is not None):
        raise ValueError(
            f"training(loss_reduction={config.loss_reduction!r}, loss_fixed_length={config.loss_fixed_length}): the "
            "fixed length belongs to 'seq-mean-token-sum-norm', and only to it."
        )
    _require(
        not needs_length or (config.loss_fixed_length or 0) > 0,
        "training(loss_fixed_length",
        config.loss_fixed_length,
        "positive)",
    )
    _require(
        config.unscorable_responses in ("stop", "leave_out"),
        "training(unscorable_responses",
        config.unscorable_responses,
        "'stop' or 'leave_out')",
    )
    check_corrector(make_corrector(config.corrector))
    _check_routes(config)
    for name in ("weight_decay", "adam_eps"):
        value = getattr(config, name)
        _require(math.isfinite(value) and value >= 0, f"training({name}", value, "finite and at least 0)")
    betas = tuple(config.adam_betas)
    _require(
        len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
        "training(adam_betas",
        betas,
        "two numbers from 0 to below 1)",
    )


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
    if config.grad_clip is not None:
        _require(config.grad_clip > 0, "training(grad_clip", config.grad_clip, "positive, or None)")
    if config.num_env_runners < 1 and config.is_online and not config.in_evaluation:
        raise ValueError(
            f"env_runners(num_env_runners={config.num_env_runners}): at least one rollout actor is needed; a vLLM "
            "engine in the driver's own process would share its threads and memory with everything else there."
        )
    if config.num_cpus_for_main_process <= 0:
        raise ValueError(
            f"resources(num_cpus_for_main_process={config.num_cpus_for_main_process}) must be positive: Tune drops an "
            "empty first bundle of the placement group, and RLlib would place every actor in its neighbour's bundle."
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


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
