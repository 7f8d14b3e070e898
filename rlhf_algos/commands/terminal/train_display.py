"""What `rlhf-algos train` shows while it runs: a live table on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from typing_extensions import override

from rlhf_algos.commands.terminal.measures import MEASURES, as_line, heading_for, text_of

# Iterations in view on a terminal, and from which length of a run on not every iteration gets a line elsewhere.
_IN_VIEW = 10
_LINES_PER_RUN = 20
_LINE_EVERY = 10


class TrainDisplay(Protocol):
    """A context that is told what happens."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def say(self, text: str) -> None:
        """Shows a message."""

    def iteration(self, number: int, row: Mapping[str, float]) -> None:
        """Shows the numbers of an iteration; 0 stands for the evaluation before the first one."""


class Quiet(TrainDisplay):
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @override
    def say(self, text: str) -> None:
        pass

    @override
    def iteration(self, number: int, row: Mapping[str, float]) -> None:
        pass


class Lines(Quiet):
    """A plain line per iteration; of a long run, each tenth, the evaluated ones and the last."""

    def __init__(self, console: Console, iterations: int) -> None:
        self._console, self._iterations = console, iterations

    @override
    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @override
    def iteration(self, number: int, row: Mapping[str, float]) -> None:
        evaluated = any(key.startswith("evaluation/") for key in row)
        due = self._iterations <= _LINES_PER_RUN or number % _LINE_EVERY == 0 or number == self._iterations
        if due or evaluated:
            self.say(f"iteration {number}/{self._iterations}  {as_line(row)}")


class OnTerminal(Quiet):
    """What a terminal shows anew again and again, and messages above it."""

    _console: Console
    _live: Live

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    @override
    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveTable(OnTerminal):
    """A table of the last iterations above a progress bar."""

    def __init__(self, console: Console, iterations: int) -> None:
        self._console = console
        self._rows: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_IN_VIEW)
        columns = (
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("train", total=iterations)
        self._live = Live(self._content(), console=console, refresh_per_second=4)

    @override
    def iteration(self, number: int, row: Mapping[str, float]) -> None:
        self._rows.append((number, row))
        self._progress.update(self._task, completed=number)
        self._live.update(self._content())

    def _content(self) -> Group:
        shown = [m for m in MEASURES if any(m.key in row for _, row in self._rows)]
        table = Table(box=None, pad_edge=False)
        for heading in ("iteration", *(heading_for(measure, [row for _, row in self._rows]) for measure in shown)):
            table.add_column(heading, justify="right")
        for number, row in self._rows:
            table.add_row(str(number), *(text_of(measure, row) for measure in shown))
        return Group(table, self._progress) if self._rows else Group(self._progress)


def train_display(console: Console, iterations: int, *, quiet: bool) -> TrainDisplay:
    """The display that fits where the console writes to."""
    if quiet:
        return Quiet()
    return LiveTable(console, iterations) if console.is_terminal else Lines(console, iterations)
