"""A Ray of one's own on this machine, which nobody else can reach. **Reaches into a private part of Ray 2.60.0.**

Ray's servers listen on the loopback address alone if the node's address is a loopback address. But `ray.init` replaces
such an address by the machine's own on Linux, unless `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0` was set before Ray was
imported: a constant then says that this Ray can't have other machines. `tests/end_to_end/test_algorithm.py` tells
when that changes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
_ANSWERS_WITHIN_S = 5.0


def start_ray(**options: Any) -> None:
    """Starts Ray on this machine, for this user's processes: everything listens on 127.0.0.1 only.

    For what spans machines start a cluster (`ray start`) and connect with `ray.init(address=...)` instead; its servers
    listen on the network, and Ray's documentation says how to protect them.

    Args:
        options: `ray.init`'s (`num_cpus`, `log_to_driver`, ...), but `address`. There is no dashboard unless
            `include_dashboard=True`; it listens on the loopback address, too.

    Raises:
        ValueError: if an option would have Ray listen elsewhere.
    """
    import ray

    for name in ("address", "_node_ip_address"):
        if name in options:
            raise ValueError(f"start_ray({name}=...): it starts Ray on {LOOPBACK}; use ray.init for another place.")
    if options.get("dashboard_host", LOOPBACK) not in (LOOPBACK, "localhost", "::1"):
        raise ValueError(f"start_ray(dashboard_host={options['dashboard_host']!r}): it starts Ray on {LOOPBACK}.")
    with _this_machine_alone():
        ray.init(address="local", **{"include_dashboard": False, **options}, _node_ip_address=LOOPBACK)


def running_cluster() -> str | None:
    """The address of the cluster that this user's `ray start` made this machine a part of, if it is running.

    `ray start` notes it in a file of Ray's temporary folder, where `ray.init()` without an address looks, too; neither
    `ray.init` nor `start_ray` writes it. So the Ray of another script on this machine is never taken for a cluster, as
    `ray.init(address="auto")` would, which joins whichever it finds. A note of another user, or of a cluster that no
    longer answers, does not count.
    """
    from ray._common.utils import get_ray_address_file

    note = Path(get_ray_address_file(None))
    try:
        if note.stat().st_uid != os.getuid():
            return None
        address = note.read_text().strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN_S).close()
    except (OSError, ValueError):
        return None
    return address


@contextmanager
def _this_machine_alone() -> Iterator[None]:
    """Ray in this process and those that it starts believes that it can't have other machines."""
    from ray._private import ray_constants

    variable = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before, constant = os.environ.get(variable), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[variable], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
