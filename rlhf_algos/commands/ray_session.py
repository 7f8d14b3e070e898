"""Ray for the length of a command."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ray_session(address: str | None = None) -> Iterator[bool]:
    """Starts Ray on this machine, or connects to a cluster, and ends it afterwards.

    Args:
        address: of a running cluster; None starts a Ray of one's own, which listens on the loopback address only.

    Yields:
        Whether Ray was started or connected to here; one that the process already uses is left as it is.
    """
    # Ray's own processes report to their log files, not between the lines of a table.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # Relative paths in a configuration mean the folder that the command was called in, in every process.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    import ray

    if ray.is_initialized():
        yield False
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        ray.init(address=address, **quiet)
    else:
        ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    try:
        yield True
    finally:
        ray.shutdown()
