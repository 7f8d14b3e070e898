"""The numbers of an iteration that the commands show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LEARNER = "learners/default_policy/"


@dataclass(frozen=True)
class Measure:
    """A number: its heading, its name in a flat result, and how it is written."""

    heading: str
    key: str
    form: str

    def text(self, row: Mapping[str, float]) -> str:
        """The number in a row, empty if the row has none."""
        return format(row[self.key], self.form) if self.key in row else ""


REWARD = Measure("reward", "env_runners/episode_return_mean", ".3f")
HELD_OUT = Measure("held-out", "evaluation/env_runners/episode_return_mean", ".3f")
GREEDY = Measure("greedy", "evaluation/env_runners/greedy_return_mean", ".3f")
SECONDS = Measure("s/iteration", "time_this_iter_s", ".1f")
MEASURES = (
    REWARD,
    HELD_OUT,
    GREEDY,
    Measure("mismatch", _LEARNER + "train_rollout_logprob_abs_diff", ".1e"),
    Measure("tis_clipfrac", _LEARNER + "tis_clipfrac", ".3f"),
    Measure("route_mismatch", _LEARNER + "route_mismatch", ".4f"),
    SECONDS,
)


def as_line(row: Mapping[str, float]) -> str:
    """All measures that a row has, on one line."""
    return "  ".join(f"{measure.heading} {measure.text(row)}" for measure in MEASURES if measure.key in row)
