"""What there is to say of a number of a result."""

from __future__ import annotations

from dataclasses import dataclass

ROLLOUT = "env_runners"
LEARNER = "learners/default_policy"
#: Where RLlib looks for what all modules of a learner have trained on.
ALL_LEARNERS = "learners/__all_modules__"
STALENESS = "staleness"
TIMERS = "timers"
EVALUATION = "evaluation/env_runners"


@dataclass(frozen=True)
class Mean:
    """A mean whose parts weigh as much as there is of what it is a mean over.

    Attributes:
        over: a count of a training step.
    """

    over: str


SUM, MAX, MIN, LAST, LIFETIME_SUM = "sum", "max", "min", "last", "lifetime_sum"
TOKENS = Mean("trained_tokens")
TRAINED_RESPONSES = Mean("trained_responses")


@dataclass(frozen=True)
class Form:
    """What kind of number a metric is.

    Attributes:
        name: for a reader.
        spec: how tables write it.
    """

    name: str
    spec: str


REWARD = Form("reward", ".3f")
FRACTION = Form("fraction", ".3f")
SMALL_FRACTION = Form("fraction", ".4f")
COUNT = Form("count", ".0f")
SECONDS = Form("seconds", ".1f")
DIFFERENCE = Form("nats", ".1e")
NATS = Form("nats", ".3f")
NUMBER = Form("number", ".4g")
TEXT = Form("text", "")


@dataclass(frozen=True)
class Metric:
    """One number of a result.

    Attributes:
        key: flat name.
        meaning: for docs/metrics.md.
        form: the kind of number.
        reduction: what the training steps of one `train()` make of it; None where none of them logs it.
        label: what a chart is called.
        heading: of a column on the terminal; the name unless given.
        logarithmic: whether a chart's axis is.
        in_table: whether the report's table of final values has it.
        compared: whether a comparison of corrections on one saved batch has it.
        of_token_loss: whether an algorithm's token loss measures it.
    """

    key: str
    meaning: str
    form: Form = NUMBER
    reduction: str | Mean | None = None
    label: str = ""
    heading: str = ""
    logarithmic: bool = False
    in_table: bool = False
    compared: bool = False
    of_token_loss: bool = False

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def place(self) -> str:
        """What stands before the name."""
        return self.key.rpartition("/")[0]

    @property
    def of_evaluation(self) -> bool:
        """Whether an evaluation measures it, thus not every iteration does."""
        return self.place == EVALUATION

    @property
    def column(self) -> str:
        """Its heading."""
        return self.heading or self.name
