"""Ray for the length of a command."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_ENVIRONMENT = {
    # A call after the end, from a destructor, is to fail and not to start another Ray.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # Ray's own processes report to their log files, not between the lines of a table.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # Relative paths in a configuration mean the folder that the command was called in, in every process.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # The sweep has a table of its own, and shows a trial's error once.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # `interrupts.deferred` takes its place.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Not every iteration is evaluated, so a metric that a schedule or a stop waits for may be missing in a result.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Seconds between two records of which trials are finished.
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
}


def set_environment() -> None:
    """Settings that Ray reads when it is imported or started; what the user has set stays."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextmanager
def ray_session(address: str | None = None) -> Iterator[bool]:
    """Starts Ray on this machine, or connects to a cluster, and ends it afterwards.

    Args:
        address: of a running cluster; None takes RAY_ADDRESS, or the cluster that `ray start` made this machine a part
            of. Without any it starts a Ray of its own, which listens on the loopback address only.

    Yields:
        Whether Ray was started or connected to here; one that the process already uses is left as it is.
    """
    import ray

    from rlhf_algos.local_ray import running_cluster, start_ray

    if ray.is_initialized():
        yield False
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = address or os.environ.get("RAY_ADDRESS") or running_cluster()
    with standard_error_if_it_fails():
        ray.init(address=address, **quiet) if address else start_ray(**quiet)
    try:
        yield True
    except KeyboardInterrupt:
        # What RLlib still holds would tell of actors that are gone, each with a traceback.
        sys.unraisablehook = lambda unraisable: None
        raise
    finally:
        ray.shutdown()


@contextmanager
def standard_error_if_it_fails() -> Iterator[None]:
    """Holds back what is written to standard error, by C++ too: Ray announces there that it will be silent."""
    with tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
