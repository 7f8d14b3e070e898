"""Rollout actors whose process ends while it is built: named at once, not waited for."""

import os
from pathlib import Path

import pytest
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.driver.calls import require_env_runners
from rlhf_algos.envs import PromptEnv
from rlhf_algos.rollout.counted_start import STARTS, counted_start
from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner


class Runner(EnvRunner):
    """The second ends its process while it is built, as often as `ends` in the environment's settings says."""

    def __init__(self, *, config, worker_index, log_dir, **kwargs):
        super().__init__(config=config)
        self.broken = None
        try:
            with counted_start(log_dir):
                self.count(worker_index, config.env_config)
        except RuntimeError as error:
            self.broken = error

    def count(self, worker_index, env_config):
        if worker_index != 2:
            return
        with Path(env_config["starts"]).open("a+") as file:
            file.write("start\n")
            file.seek(0)
            starts = len(file.readlines())
        if starts <= env_config["ends"]:
            os._exit(1)

    def require_constructed(self):
        if self.broken is not None:
            raise self.broken

    def assert_healthy(self):
        pass

    def sample(self, **kwargs):
        pass

    def get_metrics(self):
        pass

    def get_spaces(self):
        pass

    def stop(self):
        pass


@pytest.fixture
def started(ray_session, tmp_path):
    """A function that starts two such actors; the second's process ends `ends` times."""
    groups = []

    def start(ends, **fault_tolerance):
        config = (
            GRPOConfig()
            .environment("rlhf_algos/Addition-v0")
            .env_runners(num_env_runners=2)
            .fault_tolerance(**fault_tolerance)
        )
        config.env_runner_cls = Runner
        config.env_config = {"starts": str(tmp_path / "starts"), "ends": ends}
        groups.append(EnvRunnerGroup(config=config, local_env_runner=False, logdir=str(tmp_path / "log")))
        return groups[-1]

    yield start
    for group in groups:
        group.reset([])


def count(tmp_path):
    return len((tmp_path / "starts").read_text().splitlines())


def test_one_that_ends_again_and_again_is_named(started, tmp_path):
    group = started(1000)
    with pytest.raises(RuntimeError, match=rf"{STARTS} processes of this rollout actor") as raised:
        require_env_runners(group)
    assert raised.value.__notes__ == ["raised in rollout actor 2"]
    assert count(tmp_path) == STARTS
    assert list((tmp_path / "log").iterdir()) == []


@pytest.mark.parametrize("fault_tolerance", [{"restart_failed_env_runners": False}, {"max_num_env_runner_restarts": 0}])
def test_one_that_does_not_come_back_is_named_at_once(started, tmp_path, fault_tolerance):
    group = started(1000, **fault_tolerance)
    with pytest.raises(RuntimeError, match="The process of evaluation actor 2 ended while it was being built"):
        require_env_runners(group, what="evaluation actor")
    assert count(tmp_path) == 1


def test_one_that_ends_once_is_waited_for(started, tmp_path):
    group = started(1)
    require_env_runners(group)
    assert count(tmp_path) == 2
    assert group.healthy_env_runner_ids() == [1, 2]


class Ending(PromptEnv):
    """Its constructor ends the process of the actor."""

    def __init__(self, **kwargs):
        os._exit(1)

    def prompt(self, rng):
        return "never"

    def reward(self, response):
        return 0.0


def test_build_algo_names_an_actor_whose_environment_ends_the_process(ray_session):
    config = (
        GRPOConfig()
        .environment(Ending)
        .env_runners(num_env_runners=1)
        .learners(num_learners=0)
        .fault_tolerance(restart_failed_env_runners=False)
    )
    with pytest.raises(RuntimeError, match="The process of rollout actor 1 ended while it was being built"):
        config.build_algo()


def test_the_engines_actor_counts_its_starts(monkeypatch, tmp_path):
    class Actor:
        def get_actor_id(self):
            return "abc"

    seen = []

    class Looking(PromptEnv):
        def __init__(self, **kwargs):
            seen.append((tmp_path / ".starting-abc").read_bytes())
            raise ValueError("no engine is needed here")

        def prompt(self, rng):
            return "never"

        def reward(self, response):
            return 0.0

    monkeypatch.setattr("ray.get_runtime_context", Actor)
    config = GRPOConfig().environment(Looking).debugging(seed=0)
    with pytest.raises(ValueError, match="no engine is needed"):
        VLLMEnvRunner(config=config, log_dir=str(tmp_path)).require_constructed()
    assert seen == [b"."] and list(tmp_path.iterdir()) == []
    (tmp_path / ".starting-abc").write_bytes(b"." * STARTS)
    with pytest.raises(RuntimeError, match=f"{STARTS} processes of this rollout actor"):
        VLLMEnvRunner(config=config, log_dir=str(tmp_path)).require_constructed()
    assert seen == [b"."] and list(tmp_path.iterdir()) == []
