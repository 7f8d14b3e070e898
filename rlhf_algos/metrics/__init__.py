"""Every number of a result: its name, what it means, what several training steps make of it, how it is shown.

Keys are flat: `learners/default_policy/entropy` is `result["learners"]["default_policy"]["entropy"]`. docs/metrics.md,
the report, the tables of the commands and the reductions of a run read this list. What a token loss of your own
measures needs no entry: it is a mean over trained tokens (or responses, as the loss says), under its name.
"""

from __future__ import annotations

import re

from rlhf_algos.metrics.evaluation import OF_EVALUATIONS
from rlhf_algos.metrics.metric import (
    ALL_LEARNERS,
    COUNT,
    EVALUATION,
    FRACTION,
    LAST,
    LEARNER,
    LIFETIME_SUM,
    MAX,
    MIN,
    NUMBER,
    ROLLOUT,
    SECONDS,
    STALENESS,
    SUM,
    TEXT,
    TIMERS,
    TOKENS,
    TRAINED_RESPONSES,
    Form,
    Mean,
    Metric,
)
from rlhf_algos.metrics.training import OF_ROLLOUTS, OF_THE_ITERATION, OF_UPDATES

__all__ = [
    "ALL_LEARNERS",
    "COUNT",
    "EVALUATION",
    "FRACTION",
    "LAST",
    "LEARNER",
    "LIFETIME_SUM",
    "MAX",
    "METRICS",
    "MIN",
    "NUMBER",
    "ROLLOUT",
    "SECONDS",
    "STALENESS",
    "SUM",
    "TEXT",
    "TIMERS",
    "TOKENS",
    "TRAINED_RESPONSES",
    "Form",
    "Mean",
    "Metric",
    "declared_name",
    "is_listed",
    "metric_of",
]

METRICS: tuple[Metric, ...] = (*OF_ROLLOUTS, *OF_UPDATES, *OF_THE_ITERATION, *OF_EVALUATIONS)
_BY_KEY = {metric.key: metric for metric in METRICS}


def metric_of(key: str) -> Metric:
    """The metric with a flat key; all layers share one.

    Raises:
        KeyError: if the list has none.
    """
    return _BY_KEY[declared_name(key)]


def is_listed(key: str) -> bool:
    """Whether the list has a flat key."""
    return declared_name(key) in _BY_KEY


def declared_name(key: str) -> str:
    """The name under which the list would have a flat key."""
    return re.sub(r"_layer_\d+$", "_layer_N", key)
