"""A metric of a group over iterations: its mean over the runs, and their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_algos.metrics import Metric
from rlhf_algos.report.groups import Group
from rlhf_algos.report.metrics import Section


@dataclass(frozen=True)
class Series:
    """Mean, smallest and largest value over the runs that have one, at each iteration of any run.

    Attributes:
        iterations, means, lows, highs, counts: one entry per iteration; a count is the number of runs.
    """

    iterations: tuple[int, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Chart:
    """A metric's values, ready to draw.

    Attributes:
        metric: what is drawn.
        groups: by the group's index, the mean and spread of its runs.
        failed: the group's index and the curve of each failed run, which is in no mean.
    """

    metric: Metric
    groups: dict[int, Series]
    failed: tuple[tuple[int, Series], ...]


def series_of(runs: Sequence[dict[int, float]], *, positive: bool = False) -> Series:
    """Combines one metric of several runs, each given as values by iteration.

    Args:
        runs: at least none; an iteration that only some have is combined over those.
        positive: leave out what is not above 0, for a logarithmic axis.
    """
    kept = [{i: value for i, value in run.items() if value > 0 or not positive} for run in runs]
    iterations = sorted({i for run in kept for i in run})
    columns = [[run[i] for run in kept if i in run] for i in iterations]
    return Series(
        iterations=tuple(iterations),
        means=tuple(sum(column) / len(column) for column in columns),
        lows=tuple(min(column) for column in columns),
        highs=tuple(max(column) for column in columns),
        counts=tuple(len(column) for column in columns),
    )


def chart_of(metric: Metric, groups: Sequence[Group]) -> Chart:
    """The chart of a metric; it has no points if no run has a value that its axis can show."""
    drawn: dict[int, Series] = {}
    failed: list[tuple[int, Series]] = []
    for index, group in enumerate(groups):
        series = series_of([run.values(metric.key) for run in group.compared], positive=metric.logarithmic)
        if series.iterations:
            drawn[index] = series
        for run in group.runs:
            curve = series_of([run.values(metric.key)], positive=metric.logarithmic)
            if run.failed and curve.iterations:
                failed.append((index, curve))
    return Chart(metric, drawn, tuple(failed))


@dataclass(frozen=True)
class Charts:
    """What of a report's charts can be drawn.

    Attributes:
        sections: those with at least one chart, and their charts.
        missing: the metrics that no run has.
        exact: the metrics that are 0 throughout, which a logarithmic axis can't show.
    """

    sections: tuple[tuple[Section, tuple[Chart, ...]], ...]
    missing: tuple[Metric, ...]
    exact: tuple[Metric, ...]


def charts_of(sections: Sequence[Section], groups: Sequence[Group]) -> Charts:
    """Sorts the metrics of all sections into those with a chart and those without."""
    kept: list[tuple[Section, tuple[Chart, ...]]] = []
    missing: list[Metric] = []
    exact: list[Metric] = []
    for section in sections:
        charts = [chart_of(metric, groups) for metric in section.metrics]
        for chart in charts:
            if not chart.groups and not chart.failed:
                recorded = any(run.values(chart.metric.key) for group in groups for run in group.runs)
                (exact if recorded else missing).append(chart.metric)
        drawn = tuple(chart for chart in charts if chart.groups or chart.failed)
        if drawn:
            kept.append((section, drawn))
    return Charts(tuple(kept), tuple(missing), tuple(exact))
