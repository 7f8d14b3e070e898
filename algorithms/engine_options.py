"""Which arguments `vllm(...)` takes: the engine's own, less those that would break what is recorded or trained on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_algos.engine_arguments import vllm_engine_arguments

_MODEL = "language_model(path), for sampler and trainer alike: give a folder that holds the model as it is to be"
_TOKENS = "language_model(path), whose tokenizer makes the tokens of sampler and trainer"
# Engine arguments that this library sets; another value would break what it records, or give sampler and trainer
# different models.
OWNED = {
    "model": "language_model(path)",
    "model_weights": _MODEL,
    "revision": _MODEL,
    "code_revision": _MODEL,
    "hf_config_path": _MODEL,
    "hf_overrides": _MODEL,
    "model_class_overrides": _MODEL,
    "trust_remote_code": "language_model(trust_remote_code=...)",
    "tokenizer": _TOKENS,
    "tokenizer_mode": _TOKENS,
    "tokenizer_revision": _TOKENS,
    "skip_tokenizer_init": "nothing: the rollout actor tokenizes",
    "logprobs_mode": "nothing: log-probabilities are those of the distribution that was sampled from",
    "max_logprobs": "sampling(record_head=...)",
    "enable_return_routed_experts": "sampling(record_routes=...)",
    "async_scheduling": "nothing: sampling is synchronous and reproducible",
    "seed": "debugging(seed=...)",
}
_DRAFTED = "drafted tokens are accepted by a rule of their own"
_STRUCTURED = "structured output forbids tokens that the trainer gives probability to"
_OTHER_CODE = (
    "it runs code of its own in the engine, where weights are replaced and log-probabilities recorded; "
    "language_model(trust_remote_code=...) decides about a model's code"
)
# Engine arguments with which tokens would be drawn from another distribution than the one that is recorded, or with
# which other code than the engine's would draw them.
REFUSED = {
    "logits_processors": "a logits processor changes what is sampled, and the trainer knows nothing of it",
    "watermark_config": "a watermark changes what is sampled, and the trainer knows nothing of it",
    "reasoning_config": "a limit on reasoning forces tokens that were not sampled",
    "diffusion_config": "a trainer of next tokens has no probability for what diffusion samples",
    "speculative_config": _DRAFTED,
    "spec_method": _DRAFTED,
    "spec_model": _DRAFTED,
    "spec_tokens": _DRAFTED,
    "structured_outputs_config": _STRUCTURED,
    "reasoning_parser": _STRUCTURED,
    "generation_config": "sampling settings come from sampling(...) alone",
    "override_generation_config": "sampling settings come from sampling(...) alone",
    "worker_cls": _OTHER_CODE,
    "worker_extension_cls": _OTHER_CODE,
    "scheduler_cls": _OTHER_CODE,
    "io_processor_plugin": _OTHER_CODE,
    "reasoning_parser_plugin": _OTHER_CODE,
    "default_mm_loras": "the trainer's model has no adapter",
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
    """Raises for every option of vLLM's sampling that would break the record; says why.

    MATH 7: log q must be the log-probability of the distribution that was sampled from, and the trainer must be able to
    form the same one.
    """
    for name, value in options.items():
        if name in _BIASING_SAMPLING_OPTIONS:
            raise ValueError(
                f"sampling({name}={value!r}) is refused: {_BIASING_SAMPLING_OPTIONS[name]}. Every ratio p/q and every "
                "score centering would be taken against a distribution that was not sampled from."
            )


def check_engine_arguments(names: Iterable[str]) -> None:
    """Raises ValueError for an argument of `vllm(...)` that the engine does not have, or that is not the user's to set.

    Args:
        names: of the arguments. They are compared with the engine's own where vLLM is installed.
    """
    known = vllm_engine_arguments()
    for name in names:
        if name in OWNED:
            raise ValueError(f"vllm({name}=...) is set by {OWNED[name]}.")
        if name in REFUSED:
            raise ValueError(f"vllm({name}=...) is refused: {REFUSED[name]}.")
        if known and name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"vllm({name}=...): the engine has no argument {name!r}.{hint}")
