"""Corrections side by side on one fixed batch: what each makes of the same samples, without any optimizer step.

In a training run every setting changes the samples that follow. Here the batch stays, so differences are those of the
gradients alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_algos.algorithms.reinforce_sc import CenteredReinforce, ReinforceSCConfig
from rlhf_algos.analysis.setting import REFERENCE, Setting
from rlhf_algos.batch import RolloutBatch, SampledWith
from rlhf_algos.driver.advantages import with_advantages
from rlhf_algos.envs import PromptSpace, UnicodeText
from rlhf_algos.metrics import METRICS

# Of a batch that says nothing: log q as a softmax gives it.
_OF_HAND_MADE = SampledWith(model=None, temperature=1.0, top_p=1.0, top_k=0)
_COMPARED = tuple(metric.name for metric in METRICS if metric.compared)


def compare_settings(
    batch: RolloutBatch,
    settings: Sequence[Setting],
    *,
    reference: Setting = REFERENCE,
    model: str | None = None,
    dtype: str = "float32",
    token_budget: int = 8192,
) -> list[dict[str, Any]]:
    """The REINFORCE gradient of the batch under each setting, against that of the reference.

    Runs in this process, one DeepSpeed rank, no Ray, no vLLM. At p = p0 the clipped surrogate has the same gradient.

    Args:
        batch: saved with `debugging(save_batches=...)`, or made by hand; advantages are computed if it has none. One
            without settings, which needs `model`, is taken as sampled at temperature 1 without truncation.
        settings: rows, in the order of the result. What the batch does not allow (centering without a recorded head or
            support, R3 without routes) is an error.
        reference: compared with; computed also if it is not among the settings.
        model: weights of the trainer's policy p; by default the model that the batch names.
        dtype: of the trainer.
        token_budget: tokens of a micro-batch.

    Returns:
        One dict per setting: `setting`, `loss`, `grad_norm`, `cosine` and `norm_ratio` to the reference's gradient (NaN
        if one of the gradients is 0), and the learner's mismatch and correction metrics (docs/metrics.md).
    """
    if batch.advantages is None:
        batch = with_advantages(batch, ReinforceSCConfig().advantages)
    learner = learner_for(batch, model=model, dtype=dtype, token_budget=token_budget)
    results = {}
    # By their text: two that say the same are one row.
    for setting in {str(setting): setting for setting in (reference, *settings)}.values():
        of_update = replace(
            learner.settings,
            corrector=setting.corrector,
            router_replay=setting.router_replay,
            token_loss=CenteredReinforce(setting.score_centering),
        )
        metrics, gradient = learner.gradient_of(batch, of_update)
        results[str(setting)] = metrics, torch.cat([tensor.double().flatten().cpu() for tensor in gradient.values()])
    return [_row(setting, *results[str(setting)], results[str(reference)][1]) for setting in settings]


def _row(
    setting: Setting, metrics: dict[str, float], gradient: torch.Tensor, reference: torch.Tensor
) -> dict[str, Any]:
    own, other = float(gradient.norm()), float(reference.norm())
    row = {
        "setting": str(setting),
        "loss": metrics["loss"],
        "grad_norm": own,
        "cosine": float(gradient @ reference) / (own * other) if own > 0 and other > 0 else math.nan,
        "norm_ratio": own / other if other > 0 else math.nan,
    }
    return row | {name: metrics[name] for name in _COMPARED if name in metrics}


def learner_for(batch: RolloutBatch, *, model: str | None, dtype: str, token_budget: int) -> Any:
    """A learner of this process with the batch's sampling settings, whose steps change nothing.

    Raises:
        ValueError: if the batch's settings do not say how it was sampled, or if no model is given and the one that the
            batch names is not known to be the trainer's.
    """
    sampled = batch.settings or _OF_HAND_MADE
    path = model or sampled.require_model()
    temperature, top_p, top_k = sampled.require_distribution()
    newest = int(batch.weight_versions.max(initial=0))
    if model is None and newest > 0:
        raise ValueError(
            f"The batch was sampled at weight version {newest}, and {path!r} has those of version 0. "
            "Give the trainer's weights of that iteration as model=... (Algorithm.save_pretrained writes them)."
        )
    config = (
        ReinforceSCConfig()
        .environment("rlhf_algos/Addition-v0")
        .language_model(path, dtype=dtype)
        .sampling(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            record_routes=batch.routes is not None,
        )
        .learners(num_learners=0, num_cpus_per_learner=torch.get_num_threads())
        .deepspeed(token_budget=token_budget)
        .training(lr=0.0, grad_clip=None)
    )
    config.validate()
    # Not those of the batch's environment: a learner only asks that there are some.
    return config.build_learner(spaces={DEFAULT_MODULE_ID: (PromptSpace(), UnicodeText())})
