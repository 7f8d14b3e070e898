"""What Tune calls a trial and its folder: the values that it has and others have not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_algos.plugins import as_text

# Of a folder's name; file systems allow 255, and Tune's own files in it need a path that is not too long either.
_LONGEST = 100


@dataclass(frozen=True)
class TrialName:
    """`corrector=tis, seed=0`. Called by Tune with a trial.

    Attributes:
        labels: of each value that is searched, by its place in the trial's config, as in `vllm_args/dtype`.
    """

    labels: Mapping[str, str]

    def __call__(self, trial: Any) -> str:
        """The name."""
        chosen = trial.evaluated_params
        return ", ".join(f"{label}={as_text(chosen[place])}" for place, label in self.labels.items() if place in chosen)


@dataclass(frozen=True)
class TrialFolder:
    """`trial-3-corrector=tis,seed=0`: the trial's number keeps them apart whatever the name is cut to."""

    name: TrialName

    def __call__(self, trial: Any) -> str:
        """The folder's name."""
        number = int(trial.trial_id.rpartition("_")[2]) + 1
        safe = re.sub(r"[^\w.=+,-]+", "", self.name(trial).replace(", ", ",").replace("(", "-"))
        return f"trial-{number}-{safe}"[:_LONGEST].rstrip("-,")


def value_at(config: Mapping[str, Any], place: str) -> Any:
    """The value in a config's dict at a place such as `lr/0/1`."""
    value: Any = config
    for part in place.split("/"):
        value = value[int(part)] if isinstance(value, list | tuple) else value[part]
    return value
