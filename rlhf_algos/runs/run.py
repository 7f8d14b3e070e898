"""One run, whoever wrote its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_algos.runs.samples import Sample

# Where the seed stands in a configuration: RLlib's own name, and the method of our configs that sets it.
_SEED_PATHS = (("seed",), ("debugging", "seed"), ("debugging/seed",))


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: its folder.
        config: the exact configuration; None if the folder has none.
        rows: by iteration, the metrics of that iteration under flat names.
        state: running, finished, interrupted, failed or unknown.
        error: why it failed, possibly a whole traceback.
        samples: responses to show, in the order they were recorded.
        notes: what a reader of the report has to know about how the folder was read.
    """

    path: Path
    config: Mapping[str, Any] | None
    rows: Mapping[int, Mapping[str, float]]
    state: str
    error: str | None = None
    samples: tuple[Sample, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def seed(self) -> Any:
        """The seed in the configuration, None if it sets none."""
        for path in _SEED_PATHS:
            value: Any = self.config or {}
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    @property
    def failed(self) -> bool:
        """Whether the run ended with an error."""
        return self.state == "failed"

    @property
    def reason(self) -> str:
        """Why it failed, in one line: an exception's own line, which ends its traceback."""
        lines = [line.strip() for line in (self.error or "").splitlines() if line.strip()]
        if not lines:
            return "no reason was recorded"
        return lines[-1] if "Traceback" in (self.error or "") or lines[0].startswith("Failure #") else lines[0]

    def values(self, key: str) -> dict[int, float]:
        """A metric by iteration, in order."""
        return {iteration: self.rows[iteration][key] for iteration in sorted(self.rows) if key in self.rows[iteration]}


def without_seed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the option that `Run.seed` reads."""
    rest = dict(config)
    for path in _SEED_PATHS:
        if len(path) == 1:
            rest.pop(path[0], None)
        elif isinstance(rest.get(path[0]), Mapping):
            rest[path[0]] = {key: value for key, value in rest[path[0]].items() if key != path[1]}
    return rest
