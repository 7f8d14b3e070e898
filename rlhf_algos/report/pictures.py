"""The charts as PNG files, for documents and messages."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from rlhf_algos.report.groups import Group
from rlhf_algos.report.palette import LIGHT, look_of
from rlhf_algos.report.series import Chart, Series

_MOST_COLUMNS = 2
_MOST_MARKERS = 25
# Of a small legend, on the safe side; beside each name there is a piece of its line.
_CHARACTERS_PER_INCH = 11
_CHARACTERS_OF_A_LINE = 8


def draw_picture(title: str, charts: Sequence[Chart], groups: Sequence[Group], path: Path) -> Path:
    """Draws charts side by side with one legend below; returns the path.

    Args:
        title: of the picture.
        charts: at least one.
        groups: all groups of the report, in the order that gives them their colours.
        path: PNG to write.
    """
    columns = min(len(charts), _MOST_COLUMNS)
    rows = -(-len(charts) // columns)
    names = [index for index in range(len(groups)) if any(index in chart.groups for chart in charts)]
    width = max(6.4, 4.8 * columns)
    labels, legend_columns = _legend_layout([groups[index].name for index in names], width)
    lines = sum(label.count("\n") + 1 for label in labels) / legend_columns
    figure = Figure(figsize=(width, 3.2 * rows + 0.7 + 0.18 * math.ceil(lines)), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, chart in zip(panels, charts, strict=False):
        _draw(axes, chart)
    for axes in panels[len(charts) :]:
        axes.set_axis_off()
    figure.suptitle(_plain(title))
    handles = [Line2D([], [], label=_plain(label), **_style(index)) for index, label in zip(names, labels, strict=True)]
    if any(chart.failed for chart in charts):
        handles.append(Line2D([], [], label="a failed run", color="0.4", linestyle=":", linewidth=1))
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=legend_columns, fontsize="small")
    figure.savefig(path, dpi=120)
    return path


def _legend_layout(names: Sequence[str], width: float) -> tuple[list[str], int]:
    """The names, wrapped where one is wider than the picture, and the number of columns that they fit into."""
    characters = int(width * _CHARACTERS_PER_INCH)
    longest = max((len(name) for name in names), default=0) + _CHARACTERS_OF_A_LINE
    fitting = max(1, min(3, characters // longest if longest else 1, math.ceil(len(names) / 3)))
    return [textwrap.fill(name, max(20, characters - _CHARACTERS_OF_A_LINE)) for name in names], fitting


def _draw(axes: Any, chart: Chart) -> None:
    for index, series in chart.groups.items():
        color = LIGHT[look_of(index).color]
        if any(count > 1 for count in series.counts):
            axes.fill_between(series.iterations, series.lows, series.highs, color=color, alpha=0.18, linewidth=0)
        axes.plot(series.iterations, series.means, **_style(index, series))
    for index, series in chart.failed:
        color = LIGHT[look_of(index).color]
        axes.plot(series.iterations, series.means, color=color, linestyle=":", linewidth=1, marker="x", markersize=4)
    if chart.metric.logarithmic:
        axes.set_yscale("log")
    axes.set_title(_plain(chart.metric.label), fontsize="medium")
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def _style(index: int, series: Series | None = None) -> dict[str, Any]:
    look = look_of(index)
    marked = series is None or len(series.iterations) <= _MOST_MARKERS
    return {
        "color": LIGHT[look.color],
        "linestyle": look.linestyle,
        "marker": look.matplotlib_marker if marked else "",
        "markersize": 4,
    }


def _plain(text: str) -> str:
    # Matplotlib sets what stands between two dollar signs as a formula, and fails on a wrong one.
    return text.replace("$", r"\$")
