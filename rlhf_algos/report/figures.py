"""The page's charts, as Plotly figures in JSON. Colours are left to the page, which knows whether it is dark."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rlhf_algos.report.groups import Group
from rlhf_algos.report.palette import look_of
from rlhf_algos.report.series import Chart, Series

# With more points than this, a marker at each hides the line.
_MOST_MARKERS = 25


def figure_of(chart: Chart, groups: Sequence[Group]) -> dict[str, Any]:
    """A chart: of each group the mean as a line and, with several runs, the spread as a band; failed runs dotted."""
    figure = go.Figure(layout={"template": "none"})
    for index, series in chart.groups.items():
        if any(count > 1 for count in series.counts):
            figure.add_trace(_band(index, series))
    for index, series in chart.groups.items():
        figure.add_trace(_line(index, series, groups[index].name))
    for index, series in chart.failed:
        figure.add_trace(_failed(index, series, groups[index].name))
    figure.update_layout(
        height=300,
        # Wide enough for any label. Plotly's own fitting can swing between two widths, and then warns.
        margin={"l": 64, "r": 12, "t": 12, "b": 44},
        hovermode="x unified",
        # Evaluations are far apart: the nearest one counts wherever one points.
        hoverdistance=-1,
        showlegend=False,
        xaxis=_iteration_axis(chart),
        yaxis=_value_axis(chart),
    )
    layout: dict[str, Any] = figure.to_plotly_json()
    # The template holds colours, and each figure would repeat it.
    layout["layout"].pop("template")
    return layout


def _iteration_axis(chart: Chart) -> dict[str, Any]:
    # Plotly's own range leaves room for markers, so it would begin before the first iteration.
    iterations = [i for series in _all_series(chart) for i in series.iterations]
    first, last = min(iterations), max(iterations)
    margin = 0.015 * (last - first) or 0.5
    axis: dict[str, Any] = {"title": {"text": "iteration"}, "range": [first - margin, last + margin]}
    # There is no iteration 1.5.
    return axis | {"dtick": 1} if last - first < 8 else axis


def _value_axis(chart: Chart) -> dict[str, Any]:
    if not chart.metric.logarithmic:
        return {"type": "linear"}
    values = [value for series in _all_series(chart) for value in (*series.lows, *series.highs)]
    decades = math.log10(max(values) / min(values))
    # Within a decade Plotly chooses well; above, it labels each of 1 to 9 or only powers of ten.
    if decades <= 1:
        return {"type": "log", "tickformat": "~g"}
    if decades < 3:
        return {"type": "log", "tickformat": "~g", "dtick": "D2"}
    return {"type": "log", "tickformat": "~e", "dtick": math.ceil(decades / 6)}


def _all_series(chart: Chart) -> list[Series]:
    return [*chart.groups.values(), *(series for _, series in chart.failed)]


def _line(index: int, series: Series, name: str) -> Any:
    look = look_of(index)
    return go.Scatter(
        x=series.iterations,
        y=_rounded(series.means),
        customdata=[
            f" ({low:.3g} to {high:.3g})" if count > 1 else ""
            for low, high, count in zip(series.lows, series.highs, series.counts, strict=True)
        ],
        name=_shown(name),
        mode="lines+markers" if len(series.iterations) <= _MOST_MARKERS else "lines",
        line={"dash": look.dash, "width": 2},
        marker={"symbol": look.marker, "size": 6},
        # The line beside it says whose value it is; with the name, the box would be wider than the chart.
        hovertemplate="%{y:.4~g}%{customdata}<extra></extra>",
        meta={"group": index, "part": "line", "color": look.color},
    )


def _band(index: int, series: Series) -> Any:
    return go.Scatter(
        x=series.iterations + series.iterations[::-1],
        y=_rounded(series.highs + series.lows[::-1]),
        mode="lines",
        line={"width": 0},
        fill="toself",
        hoverinfo="skip",
        meta={"group": index, "part": "band", "color": look_of(index).color},
    )


def _failed(index: int, series: Series, name: str) -> Any:
    return go.Scatter(
        x=series.iterations,
        y=_rounded(series.means),
        name=f"failed: {_shown(name)}",
        mode="lines+markers",
        line={"dash": "dot", "width": 1},
        marker={"symbol": "x-thin-open", "size": 6},
        hovertemplate="%{y:.4~g} (failed)<extra></extra>",
        meta={"group": index, "part": "failed", "color": look_of(index).color},
    )


def _shown(name: str) -> str:
    # Plotly reads a name as a kind of HTML.
    return html.escape(name, quote=False)


def _rounded(values: Sequence[float]) -> list[float]:
    # Six digits are more than a chart shows; 17 would double the page.
    return [float(f"{value:.6g}") for value in values]
