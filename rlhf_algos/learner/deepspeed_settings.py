"""From our options to a DeepSpeed configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

# Keys that the learner owns; a second value in `deepspeed(config=...)` would contradict an option of ours.
_OWNED = {
    "train_batch_size": "training(prompts_per_iteration=..., group_size=...)",
    "train_micro_batch_size_per_gpu": "deepspeed(token_budget=...)",
    "gradient_accumulation_steps": "deepspeed(token_budget=...)",
    "gradient_clipping": "training(grad_clip=...)",
    "optimizer": "training(lr=..., adam_betas=..., weight_decay=...)",
    "scheduler": "training(lr=[[step, value], ...])",
    "bf16": "language_model(dtype=...)",
    "fp16": "language_model(dtype=...)",
    "managed_gradient_accumulation": "nothing: the learner steps once per optimizer batch",
}
_ACCEPTED = {
    "zero_optimization",
    "zero_force_ds_cpu_optimizer",
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "sparse_gradients",
    "activation_checkpointing",
    "aio",
    "comms_logger",
    "dump_state",
    "flops_profiler",
    "memory_breakdown",
    "steps_per_print",
    "wall_clock_breakdown",
    "tensorboard",
    "csv_monitor",
    "seq_parallel_communication_data_type",
}


def deepspeed_settings(
    *,
    zero_stage: int,
    bfloat16: bool,
    offload_optimizer: bool,
    grad_clip: float | None,
    num_parameters: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The dictionary for `deepspeed.initialize`.

    Args:
        zero_stage: 1, 2 or 3.
        bfloat16: parameters in bfloat16 with float32 master weights; otherwise all float32.
        offload_optimizer: keep optimizer states in host memory and step on the CPU.
        grad_clip: largest global gradient norm, or None.
        num_parameters: of the model; buffers for communication are made no larger than that.
        overrides: the user's own DeepSpeed settings, merged over ours.

    Raises:
        ValueError: on a stage other than 1, 2, 3, or on an override that is unknown or belongs to another option.
    """
    if zero_stage not in (1, 2, 3):
        raise ValueError(f"deepspeed(zero_stage={zero_stage!r}) must be 1, 2 or 3.")
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0 if grad_clip is None else float(grad_clip),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": offload_optimizer,
        "bf16": {"enabled": bfloat16},
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": zero_stage},
    }
    if num_parameters is not None:
        # DeepSpeed fills a buffer of this many numbers in every step, two gigabytes by default.
        bucket = min(num_parameters, 500_000_000)
        settings["zero_optimization"] |= {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if offload_optimizer:
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    return _merged(settings, _checked(overrides or {}, zero_stage))


def _checked(overrides: Mapping[str, Any], zero_stage: int) -> Mapping[str, Any]:
    for key in overrides:
        if key in _OWNED:
            raise ValueError(f"deepspeed(config={{{key!r}: ...}}) is set by {_OWNED[key]}; use that instead.")
        if key not in _ACCEPTED:
            near = get_close_matches(key, _ACCEPTED, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"deepspeed(config=...) has an unknown key {key!r}.{hint} Known: {sorted(_ACCEPTED)}.")
    stage = overrides.get("zero_optimization", {}).get("stage", zero_stage)
    if stage != zero_stage:
        raise ValueError(
            f"deepspeed(zero_stage={zero_stage}) contradicts config['zero_optimization']['stage']={stage}; "
            "give the stage once, as zero_stage."
        )
    return overrides


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        both_mappings = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both_mappings else copy.deepcopy(value)
    return result
