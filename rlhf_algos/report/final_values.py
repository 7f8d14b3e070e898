"""The table of final values: one number per group and metric, with a 95 % confidence interval where there is one."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import ndtri, stdtrit

from rlhf_algos.metrics import EVALUATION, ROLLOUT, Metric
from rlhf_algos.report.groups import Group
from rlhf_algos.report.metrics import SECTIONS, Section
from rlhf_algos.runs.run import Run

#: How many recorded values at the end of a run are averaged.
LAST = 5
_CONFIDENCE = 0.95
_PROBLEMS = f"{EVALUATION}/num_episodes"


@dataclass(frozen=True)
class Estimate:
    """A final value.

    Attributes:
        value: mean over the runs.
        low, high: the 95 % confidence interval; None if there is none.
        count: runs that the mean is over.
        problems: evaluation problems that the interval is over; None for an interval over runs.
    """

    value: float
    low: float | None = None
    high: float | None = None
    count: int = 1
    problems: int | None = None

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.value:.4g}{interval}"


@dataclass(frozen=True)
class Row:
    """A group's line: the iterations its runs reached, and an estimate per metric (None without a value)."""

    group: Group
    iterations: str
    estimates: tuple[Estimate | None, ...]


@dataclass(frozen=True)
class Table:
    """Columns and rows; a metric that no group has is no column."""

    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]


def final_values(groups: Sequence[Group], sections: Sequence[Section] = SECTIONS) -> Table:
    """The table over all groups with a run that did not fail."""
    groups = [group for group in groups if group.compared]
    metrics = [metric for section in sections for metric in section.metrics if metric.in_table]
    metrics = [m for m in metrics if any(run.values(m.key) for group in groups for run in group.compared)]
    rows = []
    for group in groups:
        reached = sorted({max(run.rows) for run in group.compared})
        iterations = str(reached[0]) if len(reached) == 1 else f"{reached[0]} to {reached[-1]}"
        rows.append(Row(group, iterations, tuple(estimate(group.compared, metric) for metric in metrics)))
    return Table(tuple(metrics), tuple(rows))


def estimate(runs: Sequence[Run], metric: Metric) -> Estimate | None:
    """A metric's final value over the runs that have it, None if none has."""
    measured = [run for run in runs if run.values(metric.key)]
    finals = [final_value(run, metric) for run in measured]
    if not finals:
        return None
    if len(finals) > 1:
        mean, low, high = t_interval(finals)
        return Estimate(mean, low, high, len(finals))
    problems = _problems(measured[0]) if metric.of_evaluation else None
    if problems is None:
        return Estimate(finals[0])
    low, high = wilson_interval(finals[0], problems)
    return Estimate(finals[0], low, high, problems=problems)


def final_value(run: Run, metric: Metric) -> float:
    """The last evaluation, or the mean of the last `LAST` recorded values."""
    last = list(run.values(metric.key).values())[-1 if metric.of_evaluation else -LAST :]
    return sum(last) / len(last)


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of at least two values and Student's t interval around it."""
    count = len(values)
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    reach = float(stdtrit(count - 1, 0.5 + _CONFIDENCE / 2)) * deviation / math.sqrt(count)
    return mean, mean - reach, mean + reach


def wilson_interval(fraction: float, count: int) -> tuple[float, float]:
    """Wilson's score interval of a fraction of `count` problems; for rewards between 0 and 1 it is wide enough."""
    z = float(ndtri(0.5 + _CONFIDENCE / 2))
    scale = 1 + z**2 / count
    middle = (fraction + z**2 / (2 * count)) / scale
    reach = z / scale * math.sqrt(fraction * (1 - fraction) / count + z**2 / (4 * count**2))
    return middle - reach, middle + reach


def markdown(table: Table) -> str:
    """The table as Markdown, for a document."""
    head = ["group", "runs", "iterations", *(metric.label for metric in table.metrics)]
    lines = [head, ["---"] * len(head)]
    for row in table.rows:
        cells = ["-" if value is None else str(value) for value in row.estimates]
        lines.append([row.group.name, str(len(row.group.compared)), row.iterations, *cells])
    escaped = [[_markdown_text(cell) for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def _markdown_text(text: str) -> str:
    return html.escape(text, quote=False).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _problems(run: Run) -> int | None:
    """How many problems the last evaluation had, if every known reward of the run is between 0 and 1."""
    counts = list(run.values(_PROBLEMS).values())
    lows = [value for part in (ROLLOUT, EVALUATION) for value in run.values(f"{part}/episode_return_min").values()]
    highs = [value for part in (ROLLOUT, EVALUATION) for value in run.values(f"{part}/episode_return_max").values()]
    if not counts or counts[-1] < 1 or not lows or not highs or min(lows) < 0 or max(highs) > 1:
        return None
    return int(counts[-1])
