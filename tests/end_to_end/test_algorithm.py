"""The whole algorithm: reproducible runs, a killed actor, evaluation, resources."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.driver.calls import on_env_runners, on_learners
from rlhf_algos.envs import PromptEnv
from rlhf_algos.envs.addition import listed_problems
from rlhf_algos.metrics import EVALUATION, is_listed
from tests.listening import listening_addresses


def config_for(seed=0, num_env_runners=1) -> GRPOConfig:
    return (
        GRPOConfig()
        .environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
        .sampling(max_response_tokens=6)
        .vllm(max_model_len=32, max_num_seqs=64)
        .env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=0.5, num_threads_per_env_runner=2)
        .learners(num_threads_per_learner=2)
        .training(prompts_per_iteration=8, group_size=4, lr=1e-3)
        .evaluation(evaluation_duration=30)
        .debugging(seed=seed)
    )


class Recorder:
    """Keeps every batch that an algorithm trains on, and its loss."""

    def __init__(self, algorithm):
        self.algorithm, self.batches = algorithm, []

    def train(self, iterations):
        losses = []
        for _ in range(iterations):
            losses.append(self.algorithm.train()["learners"]["default_policy"]["loss"])
            self.batches.append(self.algorithm.parts.learners.last_batch)
        return losses


@pytest.fixture(scope="module")
def first_run(ray_session):
    """Five iterations with seed 0; the algorithm stays alive for the module."""
    algorithm = config_for().build_algo()
    recorder = Recorder(algorithm)
    losses = recorder.train(5)
    yield algorithm, recorder, recorder.batches[:], losses
    algorithm.stop()


def test_nothing_listens_beyond_this_machine(first_run):
    """Ray's servers, every worker, the learners' store and gloo: all processes of a running algorithm."""
    listening = listening_addresses(os.getpid())
    for part in ("gcs_server", "raylet", "ray::VLLMEnvRunner", "ray::_WrappedExecutable"):
        assert any(part in process for process in listening), (part, listening)
    beyond = {process: found for process, found in listening.items() if found - {"127.0.0.1", "::1"}}
    assert beyond == {}


def test_same_seed_gives_the_same_run_and_another_seed_does_not(first_run):
    """Also what `reset_config` promises: the running processes become those of a new algorithm."""
    algorithm, recorder, batches, losses = first_run
    for seed, same in ((1, False), (0, True)):
        assert algorithm.reset_config(config_for(seed).to_dict())
        recorder.batches.clear()
        other_losses = recorder.train(5 if same else 1)
        for mine, theirs in zip(batches, recorder.batches, strict=same):
            assert np.array_equal(mine.response_ids, theirs.response_ids) == same
            if same:
                assert np.array_equal(mine.rewards, theirs.rewards)
                assert np.array_equal(mine.rollout_logprobs, theirs.rollout_logprobs)
        assert (losses == other_losses) == same


def test_threads_arrive_where_they_are_used(first_run):
    algorithm = first_run[0]
    assert on_env_runners(algorithm.env_runner_group, lambda runner: torch.get_num_threads()) == {1: 2}
    assert on_learners(algorithm.learner_group, lambda learner: torch.get_num_threads()) == [2]


def test_a_reset_that_needs_another_engine_changes_nothing(first_run):
    algorithm = first_run[0]
    before = algorithm.parts.publication.version
    assert not algorithm.reset_config(config_for().vllm(dtype="bfloat16"))
    assert not algorithm.reset_config(config_for(num_env_runners=2))
    assert algorithm.parts.publication.version == before
    algorithm.train()


def test_results_stand_under_rllibs_keys(first_run):
    algorithm = first_run[0]
    sampled = algorithm.step_log.responses_sampled()
    result = algorithm.train()
    assert 0 <= result["env_runners"]["episode_return_mean"] <= 1
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] == sampled + 32
    assert result["staleness"] == {"mean": 0.0, "max": 0.0}
    assert {"sample", "learner_update", "weight_sync"} <= set(result["timers"])
    learner = result["learners"]["default_policy"]
    assert learner["train_rollout_logprob_abs_diff"] < 1e-6
    assert learner["ess"] == pytest.approx(1.0)
    assert learner["learning_rate"] == pytest.approx(1e-3)


def test_evaluation_plays_the_first_heldout_problems_and_none_that_is_trained_on(first_run):
    algorithm = first_run[0]
    first, second = (algorithm.evaluate()["env_runners"] for _ in range(2))
    assert first == second
    assert first["num_episodes"] == 30
    assert 0 < first["greedy_return_mean"] <= 1
    assert (first["split"], first["held_out"]) == ("heldout", 1.0)
    assert [key for key in first if not is_listed(f"{EVALUATION}/{key}")] == []
    assert first["weight_version"] == algorithm.parts.publication.version

    def prompts(runner):
        batch, _ = runner.sample_evaluation(range(30), greedy=True, weight_version=runner.weight_version)
        decode = AutoTokenizer.from_pretrained(runner.settings.model_path).decode
        return [decode(ids) for ids in np.split(batch.prompt_ids, np.cumsum(batch.prompt_lengths)[:-1])]

    actor = algorithm.env_runner_group.healthy_env_runner_ids()[0]
    played = on_env_runners(algorithm.env_runner_group, prompts, actors=[actor])[actor]
    assert played == [f"{left}+{right}=" for left, right in listed_problems(2, "heldout", 0.1)[:30]]


def test_saved_model_loads_and_agrees(first_run, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    algorithm = first_run[0]
    path = algorithm.save_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)

    def sample(runner, version):
        return runner.sample_groups([10_000], weight_version=version)[0]

    group = algorithm.env_runner_group
    actor = group.healthy_env_runner_ids()[0]
    kwargs = {actor: {"version": algorithm.parts.publication.version}}
    batch = on_env_runners(group, sample, actors=[actor], kwargs_by_actor=kwargs)[actor]
    prompt = batch.prompt_ids[: batch.prompt_lengths[0]].tolist()
    response = batch.response_ids[: batch.response_lengths[0]].tolist()
    with torch.no_grad():
        everything = model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
    logprobs = everything[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0]
    assert logprobs.numpy() == pytest.approx(batch.rollout_logprobs[: len(response)], abs=1e-5)
    assert tokenizer.decode(prompt).endswith("=")


def test_a_reward_that_ends_the_process_is_tried_twice_and_named(first_run):
    """The second time the error names the group; another configuration then goes on with the same algorithm."""

    class Exits(PromptEnv):
        def prompt(self, rng):
            self.number = int(rng.integers(10, 99))
            return f"{self.number}="

        def reward(self, response):
            if self.number % 10 == 4:
                os._exit(1)
            return 1.0

    algorithm = first_run[0]
    config = config_for().environment(Exits).training(prompts_per_iteration=40)
    config.env_config = {"split": "all"}
    assert algorithm.reset_config(config)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"environment of sample \d+ of group \d+ was running, and so it did"):
        algorithm.train()
    assert time.monotonic() - started < 120
    deadline = time.monotonic() + 120
    while not algorithm.env_runner_group.healthy_env_runner_ids() and time.monotonic() < deadline:
        algorithm.restore_env_runners(algorithm.env_runner_group)
    assert algorithm.reset_config(config_for())
    assert algorithm.train()["learners"]["default_policy"]["train_rollout_logprob_abs_diff"] < 1e-6


def test_a_killed_actor_comes_back_with_current_weights_and_groups_stay_whole(ray_session):
    """One of two actors is killed while it samples."""
    algorithm = config_for(num_env_runners=2).build_algo()
    try:
        recorder = Recorder(algorithm)
        recorder.train(1)
        group = algorithm.env_runner_group
        pids = on_env_runners(group, lambda runner: os.getpid())
        assert len(pids) == 2

        def die_while_sampling(runner):
            def dying(*args, **kwargs):
                os.kill(os.getpid(), signal.SIGKILL)

            runner.sample_groups = dying

        on_env_runners(group, die_while_sampling, actors=[1])
        result = algorithm.train()
        batch = algorithm.parts.learners.last_batch
        groups, counts = np.unique(batch.group_ids, return_counts=True)
        assert groups.tolist() == list(range(8, 16))
        assert (counts == 4).all()
        assert result["env_runners"]["groups_sampled_again_lifetime"] == 4
        # Everything was sampled from the current weights: trainer and sampler agree.
        assert result["learners"]["default_policy"]["train_rollout_logprob_abs_diff"] < 1e-6

        deadline = time.monotonic() + 120
        while len(group.healthy_env_runner_ids()) < 2 and time.monotonic() < deadline:
            algorithm.restore_env_runners(group)
            time.sleep(1)
        versions = on_env_runners(group, lambda runner: (runner.weight_version, os.getpid()))
        assert {version for version, _ in versions.values()} == {algorithm.parts.publication.version}
        assert versions[1][1] != pids[1] and versions[2][1] == pids[2]
        result = algorithm.train()
        assert result["learners"]["default_policy"]["train_rollout_logprob_abs_diff"] < 1e-6
    finally:
        algorithm.stop()


def test_a_request_that_can_never_be_met_is_an_error_at_once(ray_session):
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"need 4 GPU \(available 0\)"):
        config_for().learners(num_learners=4, num_gpus_per_learner=1).build_algo()
    with pytest.raises(ValueError, match=r"need 50[.0-9]* CPU \(available 8\)"):
        config_for().env_runners(num_env_runners=100).build_algo()
    assert time.monotonic() - started < 30


def test_an_environment_that_can_not_be_made_reaches_the_driver(ray_session):
    """The actor's own error, not RLlib's "list index out of range"."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'digitz'"):
        config_for().environment(env_config={"digitz": 3}).build_algo()
