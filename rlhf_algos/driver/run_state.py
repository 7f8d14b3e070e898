"""What a run goes on from, as its parts say it; JSON-able.

For a program of your own that keeps the learners' weights and optimizer, and starts a driver over them again. The
algorithm's own checkpoints are refused, so nothing in the library writes this state down.
"""

from __future__ import annotations

from typing import Any

from rlhf_algos.driver.publication import Publication
from rlhf_algos.driver.source import BatchSource
from rlhf_algos.driver.step_log import StepLog


def run_state(source: BatchSource, publication: Publication, step_log: StepLog) -> dict[str, Any]:
    """The state of every part of the driver that has one; learners keep theirs themselves."""
    return {"source": source.state(), "publication": publication.state(), "step_log": step_log.state()}


def restore_run(state: dict[str, Any], source: BatchSource, publication: Publication, step_log: StepLog) -> None:
    """Sets the parts to what `run_state` said.

    Args:
        state: of `run_state`.
        source: of the same kind, over the same problems or files.
        publication: whose learners have the weights of that version.
        step_log: of the run that goes on, with nothing logged yet.
    """
    source.restore(state["source"])
    step_log.restore(state["step_log"])
    publication.restore(state["publication"])
