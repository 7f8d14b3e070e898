"""The page: one HTML file with its styles, scripts and data inside."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from rlhf_algos import __version__
from rlhf_algos.report.figures import figure_of
from rlhf_algos.report.final_values import LAST, Table
from rlhf_algos.report.groups import Difference, Group, value_text
from rlhf_algos.report.palette import DARK, LIGHT, look_of
from rlhf_algos.report.samples import legend, shown_groups
from rlhf_algos.report.series import Charts
from rlhf_algos.runs.run import Run
from rlhf_algos.runs.run_folder import STATES
from rlhf_algos.runs.values import plain_config

# Columns of the table of differences; more can't be compared by eye.
_MOST_DIFFERENCES = 30
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M1 13 6 6l4 4 5-8" fill="none" stroke="#0072B2" stroke-width="2.5"/></svg>'
)


@dataclass(frozen=True)
class Content:
    """All that a page shows."""

    title: str
    groups: Sequence[Group]
    differences: Sequence[Difference]
    charts: Charts
    table: Table
    notes: Sequence[str]

    @property
    def runs(self) -> list[Run]:
        """The runs of all groups."""
        return [run for group in self.groups for run in group.runs]


def render(content: Content) -> str:
    """The page as text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    scripts = [_one_kind_of_newline(get_plotlyjs()), _resource("page.js")]
    seeds = list(dict.fromkeys(value_text(run.seed) for run in content.runs if run.seed is not None))
    return environment.from_string(_resource("page.html.j2")).render(
        content=content,
        policy=_policy(scripts),
        icon="data:image/svg+xml;base64," + base64.b64encode(_ICON.encode()).decode(),
        style=_resource("page.css"),
        palettes={"light": LIGHT, "dark": DARK},
        looks=[look_of(index) for index in range(len(content.groups))],
        scripts=scripts,
        figures=[
            (section, [(chart.metric, _in_script(figure_of(chart, content.groups))) for chart in charts])
            for section, charts in content.charts.sections
        ],
        states=_states(content.runs),
        seeds=seeds,
        failed=[(group, run) for group in content.groups for run in group.runs if run.failed],
        samples=shown_groups(content.groups),
        legend=legend(),
        configs=[(group, _config_text(group)) for group in content.groups],
        last=LAST,
        most_differences=_MOST_DIFFERENCES,
        made=f"{datetime.now():%Y-%m-%d %H:%M}",
        version=__version__,
    )


def _states(runs: Sequence[Run]) -> list[tuple[str, int]]:
    """How many runs are in each state that any is in."""
    counts = Counter(run.state for run in runs)
    return [(state, counts[state]) for state in (*STATES, "unknown") if counts[state]]


def _config_text(group: Group) -> str | None:
    config = group.config
    return None if config is None else json.dumps(plain_config(config), indent=2, sort_keys=True, ensure_ascii=False)


def _policy(scripts: Sequence[str]) -> str:
    """What the page may load: its own two scripts, told by their hashes, and nothing from elsewhere."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    # Plotly sets styles while it draws, and makes the picture that its camera button saves as a blob.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _resource(name: str) -> str:
    return _one_kind_of_newline((files("rlhf_algos.report") / "template" / name).read_text(encoding="utf-8"))


def _one_kind_of_newline(text: str) -> str:
    # A browser does the same before it compares a script with its hash.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _in_script(figure: dict[str, Any]) -> str:
    """JSON that may stand in a script element: nothing in it can close the element."""
    return json.dumps(figure, separators=(",", ":")).replace("<", "\\u003c")
