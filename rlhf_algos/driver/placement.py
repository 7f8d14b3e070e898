"""A request that no machine can ever meet is an error now, not a wait without end."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.tune import PlacementGroupFactory

from rlhf_algos.local_ray import running_cluster, start_ray

logger = logging.getLogger(__name__)

# CPUs that a run's rollout actors, and its learners, count as by default, all of them together; with the driver's 0.1
# less than one, so that every machine has them. A thread is no CPU that Ray counts: sampler and learner take turns.
_ENV_RUNNERS_CPU, _LEARNERS_CPU = 0.5, 0.4


@dataclass(frozen=True)
class Placement:
    """What a configuration says about its processes; None where it leaves a number to us.

    Attributes:
        num_env_runners: rollout actors. A search of Tune's may still stand in place of a number.
        num_learners: ranks.
        num_evaluation_env_runners: actors of evaluation's own.
        env_runner_cpus, learner_cpus: what Ray counts for one of them.
        env_runner_threads, learner_threads: of one of them, while it works.
        driver_cpus: what Ray counts for the driver.
    """

    num_env_runners: int
    num_learners: int
    num_evaluation_env_runners: int
    env_runner_cpus: float | None = None
    learner_cpus: float | None = None
    env_runner_threads: int | None = None
    learner_threads: int | None = None
    driver_cpus: float | None = None

    def cpus_per_env_runner(self) -> float:
        """CPUs that Ray counts for a rollout actor: what was given, or a share that fits every machine.

        Actors of evaluation's own, if any, get half of all that actors have.
        """
        if self.env_runner_cpus is not None:
            return self.env_runner_cpus
        has_evaluation_actors = self.num_evaluation_env_runners != 0
        return _share(_ENV_RUNNERS_CPU / 2 if has_evaluation_actors else _ENV_RUNNERS_CPU, self.num_env_runners)

    def cpus_per_learner(self) -> float:
        """CPUs that Ray counts for a learner: what was given, or a share that fits every machine."""
        return _share(_LEARNERS_CPU, self.num_learners) if self.learner_cpus is None else self.learner_cpus

    def threads_per_env_runner(self) -> int:
        """Threads of a rollout actor on this machine while it samples.

        What is given counts: its threads, else its CPUs (at least 1). Otherwise actors share all cores equally, as if
        all were on one machine: sampler and learner take turns.
        """
        return _threads(self.env_runner_threads, self.env_runner_cpus, self.num_env_runners)

    def threads_per_learner(self) -> int:
        """Threads of a learner on this machine while it updates; decided as those of a rollout actor are."""
        return _threads(self.learner_threads, self.learner_cpus, self.num_learners)

    def thread_summary(self) -> str:
        """Who has how many threads, for a line at the start."""
        actors, learners = self.num_env_runners, max(1, self.num_learners)
        sampling = f"{actors} x {self.threads_per_env_runner()} while sampling, " if actors else ""
        return f"{sampling}{learners} x {self.threads_per_learner()} while updating, of {usable_cores()} cores"

    @property
    def is_given(self) -> bool:
        """Whether any CPUs or threads are."""
        cpus = (self.env_runner_cpus, self.learner_cpus, self.driver_cpus)
        return any(number is not None for number in (*cpus, self.env_runner_threads, self.learner_threads))


def _share(of_all: float, processes: object) -> float:
    # A search of Tune's may still stand in place of the number. Ray counts ten-thousandths. More processes than cores
    # count as more, so that a hundred of them by mistake are refused and not started.
    count = processes if isinstance(processes, int) else 1
    return int(10_000 * of_all / max(1, min(count, usable_cores()))) / 10_000


def _threads(threads: int | None, cpus: float | None, processes: int) -> int:
    if threads is not None:
        return threads
    return max(1, int(cpus) if cpus is not None else usable_cores() // max(1, processes))


def usable_cores(cpu_max: str | Path = "/sys/fs/cgroup/cpu.max") -> int:
    """Cores that this process may use: those it may run on, less what a container's quota (`cpu_max`) leaves unused."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path(cpu_max).read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def bundles_of_trial(bundles: Sequence[Mapping[str, float]], placement: Placement) -> list[dict[str, float]]:
    """A trial's bundles, the first one enlarged if nothing says how many CPUs or threads its processes have.

    They use all cores of a machine then, so the trial counts as a little more than half of the largest one: Tune places
    no second one beside it, and small tasks still fit. Runs with GPUs are kept apart by these.

    Args:
        bundles: what RLlib asks for, the driver's first.
        placement: of the trial.
    """
    first, *others = (dict(bundle) for bundle in bundles)
    if placement.is_given or any(bundle.get("GPU") for bundle in bundles):
        return [first, *others]
    machine = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    needed = sum(bundle.get("CPU", 0.0) for bundle in bundles)
    first["CPU"] = round(first.get("CPU", 0.0) + max(0.0, machine / 2 + 0.1 - needed), 4)
    return [first, *others]


def request_of_trial(request: PlacementGroupFactory, placement: Placement) -> PlacementGroupFactory:
    """What a trial asks of the Ray that runs; outside of a placement group it must be there.

    Raises:
        ValueError: says for each lacking resource how much is needed and how much exists.
    """
    if not ray.is_initialized():
        return request
    request = PlacementGroupFactory(bundles_of_trial(request.bundles, placement), strategy=request.strategy)
    if ray.util.get_current_placement_group() is None:
        check_resources(request.bundles)
    return request


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
    """Connects to the cluster that this machine is part of, or starts Ray on this machine alone.

    Nothing is done if this process uses a Ray already, and a cluster that RAY_ADDRESS names is Ray's to connect to.
    Else a cluster of this user's `ray start` that runs on this machine is joined (`running_cluster`): a second Ray
    would count its GPUs again. The Ray that another script has started for itself is not. Without one, Ray is started
    for this process, listening on the loopback address only: started by its first use, it would listen on the machine's
    network address, with a dashboard.
    """
    if ray.is_initialized() or "RAY_ADDRESS" in os.environ:
        return
    address = running_cluster()
    if address is None:
        start_ray()
    else:
        logger.info("Connecting to the Ray cluster %s, which was started with `ray start`.", address)
        ray.init(address=address)
