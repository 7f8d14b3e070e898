"""What Tune calls a trial and its folder: the values that it has and others have not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def as_text(value: Any) -> str:
    """A value of a configuration, short.

    >>> as_text("tis"), as_text({"type": "tis", "high": 3.0}), as_text([1, None])
    ('tis', 'tis(high=3.0)', '[1, null]')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        options = ", ".join(f"{key}={as_text(option)}" for key, option in value.items() if key != "type")
        return f"{value['type']}({options})"
    return json.dumps(value, default=str)


def value_at(config: Mapping[str, Any], place: str) -> Any:
    """The value in a config's dict at a place such as `lr/0/1`."""
    value: Any = config
    for part in place.split("/"):
        value = value[int(part)] if isinstance(value, list | tuple) else value[part]
    return value
