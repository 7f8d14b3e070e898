"""Ray for this machine alone: what would have it listen elsewhere is refused."""

import os

import pytest

from rlhf_algos.local_ray import start_ray


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
