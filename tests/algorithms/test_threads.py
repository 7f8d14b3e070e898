"""Who has how many threads, and what Ray counts: by default each phase has all cores, and every machine suffices."""

import os
import re
import subprocess
import sys

import pytest
import torch
from ray import tune

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.driver import placement
from rlhf_algos.driver.placement import bundles_of_trial, usable_cores
from rlhf_algos.rollout import vllm_env_runner
from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner


def base():
    return GRPOConfig().environment("rlhf_algos/Addition-v0")


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(placement, "usable_cores", lambda: 8)


@pytest.mark.parametrize(
    ("actors", "learners", "threads"),
    [(1, 1, (8, 8)), (2, 1, (4, 8)), (3, 2, (2, 4)), (16, 16, (1, 1)), (1, 0, (8, 8))],
)
def test_by_default_each_phase_has_all_cores(eight_cores, actors, learners, threads):
    config = base().env_runners(num_env_runners=actors).learners(num_learners=learners)
    config.validate()
    assert (config.threads_per_env_runner(), config.threads_per_learner()) == threads


def test_what_is_given_counts(eight_cores):
    config = base().env_runners(num_env_runners=2, num_cpus_per_env_runner=3).learners(num_cpus_per_learner=2)
    assert (config.threads_per_env_runner(), config.threads_per_learner()) == (3, 2)
    config.env_runners(num_cpus_per_env_runner=0.5).learners(num_cpus_per_learner=0.4)
    assert (config.threads_per_env_runner(), config.threads_per_learner()) == (1, 1)
    config.env_runners(num_threads_per_env_runner=5).learners(num_threads_per_learner=6)
    assert (config.threads_per_env_runner(), config.threads_per_learner()) == (5, 6)
    assert config.placement().thread_summary() == "2 x 5 while sampling, 1 x 6 while updating, of 8 cores"
    assert (config.num_cpus_per_env_runner, config.num_cpus_per_learner) == (0.5, 0.4)


def test_evaluation_actors_share_the_cores_among_themselves(eight_cores):
    config = base().evaluation(evaluation_num_env_runners=4)
    config.validate()
    evaluation = config.get_evaluation_config_object()
    assert (config.threads_per_env_runner(), evaluation.threads_per_env_runner()) == (8, 2)


@pytest.mark.parametrize(
    ("actors", "learners", "evaluation_actors"), [(1, 1, 0), (2, 1, 0), (3, 7, 2), (8, 2, 0), (7, 0, 3)]
)
def test_by_default_one_cpu_is_enough_for_as_many_processes_as_cores(
    monkeypatch, eight_cores, actors, learners, evaluation_actors
):
    # Where Ray runs, the first bundle is enlarged for Tune.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    config = base().env_runners(num_env_runners=actors).learners(num_learners=learners)
    config.evaluation(evaluation_num_env_runners=evaluation_actors)
    bundles = GRPO.default_resource_request(config).bundles
    assert len(bundles) == 1 + actors + learners + evaluation_actors
    assert all(bundle["CPU"] > 0 for bundle in bundles)
    assert sum(bundle["CPU"] for bundle in bundles) <= 1.0 + 1e-6


def test_many_more_processes_than_cores_count_as_more(eight_cores):
    """A hundred by mistake are refused at once, and not started."""
    assert base().learners(num_learners=100).num_cpus_per_learner == pytest.approx(0.05)
    assert base().env_runners(num_env_runners=16).num_cpus_per_env_runner == pytest.approx(0.0625)


def test_a_share_is_no_number_that_was_given():
    """Not by a copy, nor by a dict as Tune makes it: threads would follow it."""
    config = base()
    config.validate()
    by_dict, by_state = GRPOConfig().update_from_dict(config.to_dict()), GRPOConfig.from_state(config.get_state())
    for again in (config.copy(), by_dict, by_state):
        assert not again.placement().is_given
    given = GRPOConfig().update_from_dict({"num_cpus_per_learner": 2, "num_cpus_per_env_runner": 3})
    assert (given.placement().learner_cpus, given.placement().env_runner_cpus) == (2, 3)
    assert base().learners(num_cpus_per_learner="auto").threads_per_learner() == base().threads_per_learner()
    searched = base().env_runners(num_env_runners=tune.grid_search([1, 2]))
    assert searched.num_cpus_per_env_runner == 0.5


@pytest.mark.parametrize(("machine", "first"), [(1, 0.1), (2, 0.2), (8, 3.2)])
def test_a_trial_counts_as_more_than_half_a_machine_unless_told(monkeypatch, machine, first):
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": float(machine)}}])
    bundles = [{"CPU": 0.1, "GPU": 0}, {"CPU": 0.5, "GPU": 0}, {"CPU": 0.4, "GPU": 0}]
    enlarged = bundles_of_trial(bundles, base().placement())
    assert [bundle["CPU"] for bundle in enlarged] == [first, 0.5, 0.4]
    total = sum(bundle["CPU"] for bundle in enlarged)
    assert machine / 2 < total <= machine
    for told in (
        base().env_runners(num_cpus_per_env_runner=0.5),
        base().learners(num_cpus_per_learner=0.4),
        base().learners(num_threads_per_learner=1),
        base().env_runners(num_threads_per_env_runner=1),
        base().resources(num_cpus_for_main_process=0.2),
    ):
        assert bundles_of_trial(bundles, told.placement()) == bundles
    with_gpu = [*bundles, {"CPU": 0.1, "GPU": 1}]
    assert bundles_of_trial(with_gpu, base().placement()) == with_gpu


def test_a_containers_quota_counts(tmp_path):
    file = tmp_path / "cpu.max"
    every = usable_cores(tmp_path / "none")
    for text, cores in (("max 100000", every), ("100000 100000", 1), ("50000 100000", 1), ("99900000 100000", every)):
        file.write_text(text)
        assert usable_cores(file) == cores


def test_a_rollout_actor_has_its_threads_before_the_engine_starts(monkeypatch):
    found = []
    monkeypatch.setattr(vllm_env_runner, "VLLMEngine", lambda *args, **kwargs: found.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    try:
        for config in (base().env_runners(num_threads_per_env_runner=3), base().env_runners(num_cpus_per_env_runner=2)):
            VLLMEnvRunner(config=config.debugging(seed=0)).require_constructed()
    finally:
        torch.set_num_threads(before)
    assert found == [3, 2]


@pytest.mark.parametrize(
    ("given", "module"),
    [(None, "rlhf_algos.rollout.vllm_env_runner"), ("active", "rlhf_algos.learner.deepspeed_learner")],
)
def test_threads_that_wait_leave_their_core_to_others(given, module):
    """Asked of the OpenMP library itself, which reads the environment once, when torch is loaded."""
    environment = os.environ | {"OMP_DISPLAY_ENV": "true", "OMP_WAIT_POLICY": given or ""}
    if given is None:
        del environment["OMP_WAIT_POLICY"]
    command = [sys.executable, "-c", f"import {module}"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    policies = re.findall(r"OMP_WAIT_POLICY *= *'(\w+)'", run.stderr)
    assert policies and {policy.lower() for policy in policies} == {given or "passive"}
