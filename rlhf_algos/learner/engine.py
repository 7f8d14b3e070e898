"""The DeepSpeed engine around a model, and its optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlhf_algos.learner.accelerator import deepspeed
from rlhf_algos.learner.settings import LearnerSettings


def make_engine(
    model: nn.Module, settings: LearnerSettings
) -> tuple[deepspeed.DeepSpeedEngine, torch.optim.Optimizer, list[nn.Parameter]]:
    """Wraps a model in ZeRO, with an AdamW whose learning rate is still 0.

    Returns:
        The engine, the optimizer, and the parameters that it trains.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options: dict[str, Any] = {
        "lr": 0.0,
        "betas": settings.adam_betas,
        "eps": settings.adam_eps,
        "weight_decay": settings.weight_decay,
    }
    if settings.offload_optimizer:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizer = DeepSpeedCPUAdam(parameters, adamw_mode=True, **options)
    else:
        optimizer = torch.optim.AdamW(parameters, fused=True, **options)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=settings.deepspeed(sum(parameter.numel() for parameter in parameters)),
        dist_init_required=False,
    )
    return engine, optimizer, parameters
