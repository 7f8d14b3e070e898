"""The numbers of an iteration that the commands show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEARNER = "learners/default_policy/"
_EVALUATION = "evaluation/env_runners/"


@dataclass(frozen=True)
class Measure:
    """A number: its heading, its name in a flat result, and how it is written.

    Attributes:
        heading: what it is called.
        key: flat name.
        form: format specification.
        claims_held_out: the heading holds only if the problems are not trained on.
    """

    heading: str
    key: str
    form: str
    claims_held_out: bool = False

    def heading_for(self, rows: Sequence[Mapping[str, float]]) -> str:
        """The heading that is true of all the rows."""
        measured = [row for row in rows if self.key in row]
        if self.claims_held_out and any(row.get(_EVALUATION + "held_out") != 1.0 for row in measured):
            return "evaluated"
        return self.heading

    def text(self, row: Mapping[str, float]) -> str:
        """The number in a row, empty if the row has none."""
        return format(row[self.key], self.form) if self.key in row else ""


REWARD = Measure("reward", "env_runners/episode_return_mean", ".3f")
EVALUATED = Measure("held-out", _EVALUATION + "episode_return_mean", ".3f", claims_held_out=True)
GREEDY = Measure("greedy", _EVALUATION + "greedy_return_mean", ".3f")
SECONDS = Measure("s/iteration", "time_this_iter_s", ".1f")
MEASURES = (
    REWARD,
    EVALUATED,
    GREEDY,
    Measure("mismatch", _LEARNER + "train_rollout_logprob_abs_diff", ".1e"),
    Measure("tis_clipfrac", _LEARNER + "tis_clipfrac", ".3f"),
    Measure("route_mismatch", _LEARNER + "route_mismatch", ".4f"),
    SECONDS,
)


def as_line(row: Mapping[str, float]) -> str:
    """All measures that a row has, on one line."""
    return "  ".join(f"{measure.heading_for([row])} {measure.text(row)}" for measure in MEASURES if measure.key in row)
