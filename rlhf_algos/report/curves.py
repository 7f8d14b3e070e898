"""Reward and mismatch over iterations, as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from rlhf_algos.metrics import EVALUATION, LEARNER, ROLLOUT, Metric, metric_of
from rlhf_algos.report.metrics import IS_HELD_OUT, as_evaluated

_REWARD = metric_of(f"{ROLLOUT}/episode_return_mean")
_SAMPLED = metric_of(f"{EVALUATION}/episode_return_mean")
_GREEDY = metric_of(f"{EVALUATION}/greedy_return_mean")
_MISMATCH = tuple(
    metric_of(f"{LEARNER}/{name}")
    for name in ("train_rollout_logprob_abs_diff", "train_rollout_logprob_abs_diff_max", "mismatch_kl")
)


def plot_training(rows: Sequence[Mapping[str, float]], path: str | Path, *, title: str) -> Path:
    """Draws reward and held-out accuracy above the mismatch between trainer and sampler.

    Args:
        rows: one mapping per iteration, as `read_progress` returns them.
        path: PNG to write.
        title: of the picture.

    Raises:
        ValueError: if no row has a reward.
    """
    if not any(_REWARD.key in row for row in rows):
        raise ValueError(f"Nothing to draw: none of the {len(rows)} rows has {_REWARD.key!r}.")
    figure = Figure(figsize=(8.0, 6.5), layout="constrained")
    reward, mismatch = figure.subplots(2, 1, sharex=True)
    held_out = all(row.get(IS_HELD_OUT) == 1.0 for row in rows if _SAMPLED.key in row)
    sampled, greedy = (metric if held_out else as_evaluated(metric) for metric in (_SAMPLED, _GREEDY))
    for metric, style in (
        (_REWARD, {"color": "tab:blue", "alpha": 0.7}),
        (sampled, {"color": "tab:orange", "marker": "o"}),
        (greedy, {"color": "tab:green", "marker": "s"}),
    ):
        x, y = _series(rows, metric)
        if x:
            reward.plot(x, y, label=metric.label, **style)
    reward.set_ylabel("reward")
    reward.set_ylim(0.0, 1.0)
    reward.legend(loc="best")
    for metric in _MISMATCH:
        x, y = _series(rows, metric)
        # A logarithmic axis has no place for an exact agreement.
        positive = [(i, value) for i, value in zip(x, y, strict=True) if value > 0]
        if positive:
            mismatch.plot(*zip(*positive, strict=True), label=metric.label)
    mismatch.set_yscale("log")
    mismatch.set_ylabel("trainer against sampler")
    mismatch.set_xlabel("iteration")
    mismatch.legend(loc="best")
    for axes in (reward, mismatch):
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    path = Path(path)
    figure.savefig(path, dpi=120)
    return path


def _series(rows: Sequence[Mapping[str, float]], metric: Metric) -> tuple[list[float], list[float]]:
    points = [(row["iteration"], row[metric.key]) for row in rows if metric.key in row]
    return [x for x, _ in points], [y for _, y in points]
