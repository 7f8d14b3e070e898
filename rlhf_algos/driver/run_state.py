"""What a run goes on from, as its parts say it; JSON-able."""

from __future__ import annotations

from typing import Any

from rlhf_algos.driver.publication import Publication
from rlhf_algos.driver.source import BatchSource


def run_state(source: BatchSource, publication: Publication) -> dict[str, Any]:
    """The state of every part of the driver that has one; learners keep theirs themselves."""
    return {"source": source.state(), "publication": publication.state()}


def restore_run(state: dict[str, Any], source: BatchSource, publication: Publication) -> None:
    """Sets the parts to what `run_state` said.

    Args:
        state: of `run_state`.
        source: of the same kind, over the same problems or files.
        publication: whose learners have the weights of that version.
    """
    source.restore(state["source"])
    publication.restore(state["publication"])
