"""Evaluation on actors of its own: exact means, the configuration that holds now, and deaths.

One algorithm for the module: a learner in this process that trains on saved batches, and two evaluation actors.
"""

import os
import signal
import time

import numpy as np
import pytest
import ray

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.reset import as_config
from rlhf_algos.driver.calls import on_env_runners
from rlhf_algos.envs import PromptEnv
from rlhf_algos.envs.splits import split_of
from tests.fake_engine import fake_runner

HELDOUT = [f"{number}=" for number in range(200) if split_of(f"{number}=", PromptEnv.heldout_fraction) == "heldout"]


class Fixed(PromptEnv):
    """Three held-out problems whose rewards are 1, 1 and 0, scaled."""

    num_problems = 3

    def __init__(self, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def prompt(self, rng):
        self.number = int(rng.integers(200))
        return f"{self.number}="

    def prompt_at(self, index):
        self.number = int(HELDOUT[index].removesuffix("="))
        return HELDOUT[index]

    def reward(self, response):
        return self.scale * (f"{self.number}=" in HELDOUT[:2])


def config_for(batches, *, duration=3, scale=1.0, temperature=1.0, seed=0):
    return (
        GRPOConfig()
        .environment(Fixed, env_config={"scale": 9.0})
        .offline_data(input_=str(batches))
        .sampling(max_response_tokens=4)
        .vllm(max_model_len=32, max_num_seqs=16)
        .env_runners(num_cpus_per_env_runner=0.25)
        .learners(num_learners=0)
        .training(lr=1e-3)
        .evaluation(
            evaluation_num_env_runners=2,
            evaluation_duration=duration,
            evaluation_config={"env_config": {"scale": scale}, "temperature": temperature},
        )
        .debugging(seed=seed)
    )


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """A batch to make one step with: answers of one digit to sums of one digit."""
    config = (
        GRPOConfig()
        .environment("rlhf_algos/Addition-v0", env_config={"digits": 1})
        .sampling(max_response_tokens=4)
        .training(prompts_per_iteration=8, group_size=8)
        .debugging(seed=0)
    )
    runner = fake_runner(as_config(GRPOConfig(), config), lambda request: [22 + request.seed % 10, 1])
    batch, _ = runner.sample_groups(range(8), weight_version=0)
    assert 0 < batch.rewards.mean() < 1
    folder = tmp_path_factory.mktemp("batches")
    batch.save(folder / "iteration-000001.safetensors")
    return folder


@pytest.fixture(scope="module")
def algorithm(ray_session, batches):
    algorithm = config_for(batches).build_algo()
    yield algorithm
    algorithm.stop()


def settings_of(algorithm):
    """What each evaluation actor would play with."""

    def asked(runner):
        batch, _ = runner.sample_evaluation([0], greedy=False, weight_version=runner.weight_version)
        return batch.settings.temperature, float(batch.rewards[0]), runner.settings.evaluation.seed

    return set(on_env_runners(algorithm.eval_env_runner_group, asked).values())


def test_the_mean_is_over_problems_whatever_the_number_of_actors(algorithm, batches):
    """Two actors play 2 and 1 of three problems; one problem is played by one actor, and played once."""
    results = algorithm.evaluate()["env_runners"]
    assert results["episode_return_mean"] == pytest.approx(2 / 3)
    assert results["greedy_return_mean"] == pytest.approx(2 / 3)
    # The saved batch is of another task, so nobody knows whether these problems are in it.
    assert (results["num_episodes"], results["split"], results["held_out"]) == (3, "heldout", 0.0)
    assert algorithm.reset_config(config_for(batches, duration=1))
    results = algorithm.evaluate()["env_runners"]
    assert (results["num_episodes"], results["episode_return_mean"]) == (1, 1.0)


def test_after_an_update_the_actors_evaluate_the_new_weights(algorithm, batches):
    assert algorithm.reset_config(config_for(batches))
    assert algorithm.evaluate()["env_runners"]["weight_version"] == 0
    algorithm.train()
    assert algorithm.evaluate()["env_runners"]["weight_version"] == 1
    assert set(on_env_runners(algorithm.eval_env_runner_group, lambda r: r.weight_version).values()) == {1}


def test_a_reset_reaches_the_evaluation_actors_and_a_restarted_one(algorithm, batches):
    assert algorithm.reset_config(config_for(batches, scale=0.5, temperature=0.3, seed=7))
    algorithm.evaluate()
    assert settings_of(algorithm) == {(0.3, 0.5, 7)}
    group = algorithm.eval_env_runner_group
    before = on_env_runners(group, lambda runner: os.getpid())
    os.kill(before[2], signal.SIGKILL)
    # The problems of the dead actor are played again; Ray restarts it with the configuration it was made with.
    results = algorithm.evaluate()["env_runners"]
    assert results["num_episodes"] == 3
    assert results["episode_return_mean"] == pytest.approx(1 / 3)
    wait_for(lambda: algorithm.restore_env_runners(group) or len(group.healthy_env_runner_ids()) == 2)
    algorithm.evaluate()
    restarted = on_env_runners(group, lambda runner: os.getpid())
    assert restarted[2] != before[2]
    assert settings_of(algorithm) == {(0.3, 0.5, 7)}
    # A death that no call runs into: RLlib takes the restarted actor for the one that was configured.
    os.kill(restarted[1], signal.SIGKILL)
    (actor,) = [each for number, each in group._worker_manager.actors().items() if number == 1]
    wait_for(lambda: process_of(actor) not in (None, restarted[1]))
    algorithm.evaluate()
    assert on_env_runners(group, lambda runner: os.getpid())[1] not in (restarted[1], before[1])
    assert settings_of(algorithm) == {(0.3, 0.5, 7)}


def wait_for(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def process_of(actor):
    """The process id that the actor answers with, None while it is away."""
    try:
        return ray.get(actor.apply.remote(lambda runner: os.getpid()), timeout=60)
    except ray.exceptions.RayError:
        return None


def test_more_problems_than_the_environment_has(algorithm, batches):
    assert algorithm.reset_config(config_for(batches, duration=4))
    with pytest.raises(ValueError, match=r"evaluation_duration=4\): Fixed has 3 problems"):
        algorithm.evaluate()


def test_sums_are_answered_alike_by_one_actor_or_two(algorithm, batches):
    """Means over 60 sums, and the answers themselves."""
    config = config_for(batches, duration=60).environment("rlhf_algos/Addition-v0")
    config.env_config, config.evaluation_config = {"digits": 2}, {}
    assert algorithm.reset_config(config)
    together = algorithm.evaluate()["env_runners"]

    def alone(runner):
        played = [
            runner.sample_evaluation(range(60), greedy=greedy, weight_version=runner.weight_version)[0]
            for greedy in (False, True)
        ]
        return [float(batch.rewards.mean()) for batch in played]

    actor = algorithm.eval_env_runner_group.healthy_env_runner_ids()[0]
    sampled, greedy = on_env_runners(algorithm.eval_env_runner_group, alone, actors=[actor])[actor]
    assert 0 < sampled < 1
    assert (together["episode_return_mean"], together["greedy_return_mean"]) == (
        pytest.approx(sampled),
        pytest.approx(greedy),
    )
    assert np.isfinite(together["response_length_mean"])
