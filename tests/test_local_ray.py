"""Ray for this machine alone: what would have it listen elsewhere is refused."""

import os
import socket

import pytest

from rlhf_algos.driver import placement
from rlhf_algos.driver.placement import start_ray_if_needed
from rlhf_algos.local_ray import running_cluster, start_ray


@pytest.mark.parametrize(
    ("option", "value"), [("address", "auto"), ("_node_ip_address", "10.0.0.1"), ("dashboard_host", "0.0.0.0")]
)
def test_options_that_would_open_it_are_refused(option, value):
    with pytest.raises(ValueError, match=rf"start_ray\({option}="):
        start_ray(**{option: value})


def test_the_process_is_left_as_it_was(ray_session, monkeypatch):
    """A later `ray.init(address=...)` joins a cluster under the machine's own address."""
    import ray
    from ray._private import ray_constants

    seen = {}

    def init(**options):
        seen.update(options, constant=ray_constants.ENABLE_RAY_CLUSTER, variable=os.environ[variable])

    variable = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    monkeypatch.setattr(ray, "init", init)
    start_ray(num_cpus=3)
    assert seen == {
        "address": "local",
        "num_cpus": 3,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "constant": False,
        "variable": "0",
    }
    assert ray_constants.ENABLE_RAY_CLUSTER and variable not in os.environ


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """A function that writes what `ray start` notes, of a server that listens here."""
    monkeypatch.setattr("ray._common.utils.get_default_ray_temp_dir", lambda: str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def write(address=f"127.0.0.1:{port}"):
            (tmp_path / "ray_current_cluster").write_text(address)
            return address

        yield write


def test_a_cluster_of_this_machine_is_found_by_rays_own_note(noted, monkeypatch):
    assert running_cluster() is None
    address = noted()
    assert running_cluster() == address
    for no_address in ("", "127.0.0.1", "nothing:here", "127.0.0.1:1"):
        noted(no_address)
        assert running_cluster() is None, no_address
    noted()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert running_cluster() is None, "another user's"


@pytest.mark.parametrize("variable", [None, "10.0.0.1:6379"])
@pytest.mark.parametrize("initialized", [False, True])
@pytest.mark.parametrize("cluster", [False, True])
def test_which_ray_an_algorithm_is_built_on(noted, monkeypatch, cluster, initialized, variable):
    calls = []
    monkeypatch.setattr("ray.is_initialized", lambda: initialized)
    monkeypatch.setattr("ray.init", lambda **options: calls.append(options))
    monkeypatch.setattr(placement, "start_ray", lambda: calls.append("a Ray of its own"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    address = noted() if cluster else None
    start_ray_if_needed()
    if initialized or variable:
        assert calls == []
    else:
        assert calls == ([{"address": address}] if cluster else ["a Ray of its own"])
