"""A request that no machine can ever meet is an error now, not a wait without end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import ray

from rlhf_algos.local_ray import start_ray


def check_resources(bundles: Sequence[Mapping[str, float]]) -> None:
    """Raises unless the Ray cluster, when idle, has what the bundles ask for.

    Args:
        bundles: one mapping from resource to amount per process.

    Raises:
        ValueError: says for each lacking resource how much is needed and how much exists.
    """
    needed: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            needed[name] = needed.get(name, 0.0) + amount
    existing = ray.cluster_resources()
    lacking = {name: amount for name, amount in needed.items() if amount > existing.get(name, 0.0) + 1e-6}
    if lacking:
        details = ", ".join(
            f"{amount:g} {name} (available {existing.get(name, 0.0):g})" for name, amount in lacking.items()
        )
        raise ValueError(
            f"The algorithm's processes need {details}. Lower num_env_runners, num_learners or what each of them asks "
            "for (num_cpus_per_env_runner, num_gpus_per_learner, ...), or use a cluster that has more. CPUs are only "
            "counted: start_ray(num_cpus=...) says how many processes may share the cores."
        )
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for bundle in bundles:
        if not any(all(node.get(name, 0.0) + 1e-6 >= amount for name, amount in bundle.items()) for node in nodes):
            largest = {name: max(node.get(name, 0.0) for node in nodes) for name in bundle}
            raise ValueError(f"One process needs {dict(bundle)}, but no single machine has it; at most {largest}.")


def start_ray_if_needed() -> None:
    """Starts Ray on this machine, listening on the loopback address only, unless one is running or named.

    Ray starts itself when it is first used, but then on the machine's network address and with a dashboard.
    """
    if not ray.is_initialized() and "RAY_ADDRESS" not in os.environ:
        start_ray()
