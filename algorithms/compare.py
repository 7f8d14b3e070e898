"""Corrections side by side on one fixed batch: what each makes of the same samples, without any optimizer step.

In a training run every setting changes the samples that follow. Here the batch stays, so differences are those of the
gradients alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_algos.algorithms.base.advantages import with_advantages
from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.batch import RolloutBatch
from rlhf_algos.corrections import make_corrector
from rlhf_algos.envs import PromptSpace, UnicodeText
from rlhf_algos.routing_replay import make_router_replay


@dataclass(frozen=True)
class Setting:
    """One row of the comparison.

    Attributes:
        corrector: as in `training(corrector=...)`.
        score_centering: whether the score's mean under the sampler is taken out.
        router_replay: as in `training(router_replay=...)`.
    """

    corrector: Any = "none"
    score_centering: bool = False
    router_replay: Any = "none"

    def __str__(self) -> str:
        parts = [_short(make_corrector(self.corrector).settings())]
        parts += ["centered"] if self.score_centering else []
        replay = make_router_replay(self.router_replay)
        parts += [_short(replay.settings())] if replay.replays else []
        return " + ".join(parts)


#: The gradient that on-policy training would take: no correction at all.
REFERENCE = Setting()


def all_settings(
    correctors: Sequence[Any] = ("none", "is", "tis", "icepop"),
    score_centering: Sequence[bool] = (False, True),
    router_replays: Sequence[Any] = ("none",),
) -> list[Setting]:
    """Every combination that is allowed: centering needs a token-wise corrector."""
    return [
        Setting(corrector, centering, replay)
        for replay, centering, corrector in itertools.product(router_replays, score_centering, correctors)
        if not centering or make_corrector(corrector).elementwise
    ]


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
        batch: saved with `debugging(save_batches=...)`, or made by hand; advantages are computed if it has none.
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
        batch = with_advantages(batch, normalize_std=False)
    learner = learner_for(batch, model=model, dtype=dtype, token_budget=token_budget)
    results = {}
    # By their text: a setting may hold a dict.
    for setting in {str(setting): setting for setting in (reference, *settings)}.values():
        learner.config.corrector = setting.corrector
        learner.config.score_centering = setting.score_centering
        learner.config.router_replay = setting.router_replay
        metrics, gradient = learner.gradient_of(batch)
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
    return row | {name: metrics[name] for name in _METRICS if name in metrics}


def learner_for(batch: RolloutBatch, *, model: str | None, dtype: str, token_budget: int) -> Any:
    """A learner of this process with the batch's sampling settings, whose steps change nothing.

    Raises:
        ValueError: if the batch does not say how it was sampled, or if no model is given and the one that the batch
            names is not known to be the trainer's.
    """
    if model is None and batch.settings is None:
        raise ValueError("The batch does not name its model; give model=... (a name, a directory or a hub id).")
    sampled = batch.require_settings()
    newest = int(batch.weight_versions.max(initial=0))
    if model is None and newest > 0:
        raise ValueError(
            f"The batch was sampled at weight version {newest}, and {sampled.model!r} has those of version 0. "
            "Give the trainer's weights of that iteration as model=... (Algorithm.save_pretrained writes them)."
        )
    config = (
        ReinforceSCConfig()
        .environment("rlhf_algos/Addition-v0")
        .language_model(model or sampled.model, dtype=dtype)
        .sampling(
            temperature=sampled.temperature,
            top_p=sampled.top_p,
            top_k=sampled.top_k,
            record_routes=batch.routes is not None,
        )
        .learners(num_learners=0, num_cpus_per_learner=torch.get_num_threads())
        .deepspeed(token_budget=token_budget)
        .training(lr=0.0, grad_clip=None)
    )
    config.validate()
    # Not those of the batch's environment: a learner only asks that there are some.
    return config.build_learner(spaces={DEFAULT_MODULE_ID: (PromptSpace(), UnicodeText())})


def _short(settings: dict[str, Any]) -> str:
    """`tis` with default options, `tis(high=3.0)` with others."""
    kind = settings["type"]
    try:
        defaults = make_corrector(kind).settings()
    except ValueError:
        defaults = {}
    options = ", ".join(f"{key}={value}" for key, value in settings.items() if defaults.get(key, ...) != value)
    return kind if not options or options == f"type={kind}" else f"{kind}({options})"


_METRICS = (
    "kept_signal",
    "tis",
    "tis_abs",
    "tis_clipfrac",
    "tis_weight",
    "tis_zero_fraction",
    "ess",
    "train_rollout_logprob_abs_diff",
    "train_rollout_logprob_abs_diff_max",
    "mismatch_kl",
    "ratio_outside_fraction",
    "rollout_head_mass",
    "trainer_head_mass",
    "sc_term_abs",
    "route_mismatch",
    "replayed_fraction",
)
