"""What `rlhf-algos sweep` shows while it runs, told by Tune through a callback."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ray import tune
from rich.console import Console
from rich.live import Live
from rich.table import Table
from typing_extensions import override

from rlhf_algos.commands.errors import message_of
from rlhf_algos.commands.terminal.measures import MEASURES, heading_for, text_of
from rlhf_algos.commands.terminal.train_display import Lines, OnTerminal, Quiet
from rlhf_algos.runs.values import flatten


@dataclass
class ShownTrial:
    """A trial that has started."""

    name: str
    state: str = "running"
    row: Mapping[str, float] = field(default_factory=dict)

    @property
    def iteration(self) -> int:
        """Iterations it has finished."""
        return int(self.row.get("training_iteration", 0))


class SweepDisplay(Quiet):
    """Shows nothing."""

    def started(self, number: int, name: str) -> None:
        """A trial runs; its number counts from 1."""

    def result(self, number: int, row: Mapping[str, float]) -> None:
        """A trial has finished an iteration."""

    def ended(self, number: int, error: str | None) -> None:
        """A trial is over."""


class SweepLines(SweepDisplay):
    """Plain lines."""

    def __init__(self, console: Console, trials: int, iterations: int) -> None:
        self._console, self._trials = console, trials
        self._lines = Lines(console, iterations)

    @override
    def say(self, text: str) -> None:
        self._lines.say(text)

    @override
    def started(self, number: int, name: str) -> None:
        self.say(f"trial {number}/{self._trials}  {name}")

    @override
    def result(self, number: int, row: Mapping[str, float]) -> None:
        """Prints the line that a run of `train` would."""
        self._lines.iteration(int(row["training_iteration"]), row)

    @override
    def ended(self, number: int, error: str | None) -> None:
        if error is not None:
            self.say(f"trial {number}/{self._trials}  failed: {error}")


class SweepTable(OnTerminal, SweepDisplay):
    """A live table with a row per trial."""

    def __init__(self, console: Console, trials: int, iterations: int) -> None:
        self._console, self._trials, self._iterations = console, trials, iterations
        self._shown: dict[int, ShownTrial] = {}
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._table)

    @override
    def started(self, number: int, name: str) -> None:
        self._shown[number] = ShownTrial(name)

    @override
    def result(self, number: int, row: Mapping[str, float]) -> None:
        """Changes the row's numbers; one that is not measured in every iteration stays until it is again."""
        self._shown[number].row = {**self._shown[number].row, **row}

    @override
    def ended(self, number: int, error: str | None) -> None:
        if number in self._shown:
            self._shown[number].state = "finished" if error is None else "failed"

    def _table(self) -> Table:
        shown = [m for m in MEASURES if any(m.key in trial.row for trial in self._shown.values())]
        over = sum(trial.state != "running" for trial in self._shown.values())
        table = Table(box=None, pad_edge=False, caption=f"{over} of {self._trials} trials", caption_justify="left")
        for heading in ("trial", "state", "iteration"):
            table.add_column(heading)
        for measure in shown:
            table.add_column(heading_for(measure, [trial.row for trial in self._shown.values()]), justify="right")
        for number, trial in sorted(self._shown.items()):
            numbers = [text_of(measure, trial.row) for measure in shown]
            table.add_row(f"{number} {trial.name}", trial.state, f"{trial.iteration}/{self._iterations}", *numbers)
        return table


def sweep_display(console: Console, trials: int, iterations: int, *, quiet: bool) -> SweepDisplay:
    """The display that fits where the console writes to."""
    if quiet:
        return SweepDisplay()
    return (SweepTable if console.is_terminal else SweepLines)(console, trials, iterations)


class ShowProgress(tune.Callback):
    """Hands what Tune reports to `ShowProgress.display`.

    Tune writes its callbacks into the sweep's folder and takes them from there when it resumes; the display belongs to
    this process.
    """

    display: ClassVar[SweepDisplay] = SweepDisplay()

    @override
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.display.started(number_of(trial), str(trial))

    @override
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.display.result(number_of(trial), flatten(result))

    @override
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.display.ended(number_of(trial), None)

    @override
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.display.ended(number_of(trial), message_of(_error_of(trial)))


def _error_of(trial: Any) -> BaseException:
    """What Tune has just written; it copies the files to where `trial.get_error` looks only later."""
    if trial.pickled_error_file:
        error = pickle.loads(Path(trial.pickled_error_file).read_bytes())
        if isinstance(error, BaseException):
            return error
    return RuntimeError(Path(trial.error_file).read_text(encoding="utf-8"))


def number_of(trial: Any) -> int:
    """The place of a trial in its sweep, from 1."""
    return int(trial.trial_id.rpartition("_")[2]) + 1
