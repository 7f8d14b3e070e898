"""What a sweep found: a row of final values per trial, and why trials failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_algos.commands.errors import message_of
from rlhf_algos.commands.terminal.measures import MEASURES, SECONDS, heading_for, text_of
from rlhf_algos.commands.tune.trial_names import value_at
from rlhf_algos.plugins import as_text
from rlhf_algos.runs.values import flatten


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended.

    Attributes:
        chosen: its values of what the sweep goes through, by label.
        state: finished, failed or interrupted.
        row: its last numbers.
        error: why it failed.
        folder: of the trial.
    """

    chosen: Mapping[str, str]
    state: str
    row: Mapping[str, float]
    error: str | None
    folder: Path

    @property
    def name(self) -> str:
        """Its values."""
        return ", ".join(f"{label}={value}" for label, value in self.chosen.items())


def trial_results(results: Any, labels: Mapping[str, str]) -> list[TrialResult]:
    """The trials of Tune's result grid in the order of their numbers, those that have not started left out.

    Args:
        results: what `Tuner.fit` returned.
        labels: names of the searched values, by place in a trial's config.
    """
    trials = [_trial_result(result, labels) for result in results]
    return sorted(trials, key=lambda trial: int(trial.folder.name.split("-")[1]))


def _trial_result(result: Any, labels: Mapping[str, str]) -> TrialResult:
    metrics = result.metrics or {}
    row = flatten({key: value for key, value in metrics.items() if key != "config"})
    ended = "finished" if metrics.get("done") else "interrupted"
    return TrialResult(
        chosen={label: as_text(value_at(result.config, place)) for place, label in labels.items()},
        state=ended if result.error is None else "failed",
        row=row,
        error=None if result.error is None else message_of(result.error),
        folder=Path(result.path),
    )


def table_of(trials: Sequence[TrialResult]) -> str:
    """Final values as aligned text."""
    shown = [m for m in MEASURES if m is not SECONDS and any(m.key in trial.row for trial in trials)]
    labels = list(trials[0].chosen) if trials else []
    headings = [heading_for(measure, [trial.row for trial in trials]) for measure in shown]
    lines = [[*labels, "state", "iterations", *headings]]
    for trial in trials:
        iterations = f"{trial.row.get('training_iteration', 0):.0f}"
        numbers = [text_of(measure, trial.row) or "-" for measure in shown]
        lines.append([*trial.chosen.values(), trial.state, iterations, *numbers])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
