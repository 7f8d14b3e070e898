"""The numbers of an iteration that the commands show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_algos.metrics import EVALUATION, LEARNER, ROLLOUT, Metric, metric_of

REWARD = metric_of(f"{ROLLOUT}/episode_return_mean")
EVALUATED = metric_of(f"{EVALUATION}/episode_return_mean")
GREEDY = metric_of(f"{EVALUATION}/greedy_return_mean")
SECONDS = metric_of("time_this_iter_s")
MEASURES = (
    REWARD,
    EVALUATED,
    GREEDY,
    *(metric_of(f"{LEARNER}/{name}") for name in ("train_rollout_logprob_abs_diff", "tis_clipfrac", "route_mismatch")),
    SECONDS,
)
_HELD_OUT = f"{EVALUATION}/held_out"


def heading_for(metric: Metric, rows: Sequence[Mapping[str, float]]) -> str:
    """The heading that is true of all the rows: it says "held-out" only of problems that are not trained on."""
    if metric is EVALUATED and any(row.get(_HELD_OUT) != 1.0 for row in rows if metric.key in row):
        return "evaluated"
    return metric.column


def text_of(metric: Metric, row: Mapping[str, float]) -> str:
    """The number in a row, empty if the row has none."""
    return format(row[metric.key], metric.form.spec) if metric.key in row else ""


def as_line(row: Mapping[str, float]) -> str:
    """All measures that a row has, on one line."""
    return "  ".join(f"{heading_for(metric, [row])} {text_of(metric, row)}" for metric in MEASURES if metric.key in row)
