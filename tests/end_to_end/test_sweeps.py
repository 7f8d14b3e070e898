"""Sweeps on real engines: which processes trials share, and the commands."""

import json
import os
import runpy
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from ray import tune

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.cli import main
from rlhf_algos.driver.calls import on_env_runners
from rlhf_algos.envs import PromptEnv

ROOT = Path(__file__).parents[2]


def record_engines(algorithm, metrics_logger, result):
    """A callback: which processes an iteration ran in."""
    (result["engine_pid"],) = on_env_runners(algorithm.env_runner_group, lambda runner: os.getpid()).values()


class CountedGRPO(GRPO):
    """For a configuration file, which has no callbacks."""

    def step(self):
        result = super().step()
        record_engines(self, None, result)
        return result


# ---- trials one after another --------------------------------------------------------------------------------------


class Share(PromptEnv):
    """The reward is the setting, which must be a number by then."""

    def __init__(self, wanted, **kwargs):
        super().__init__(**kwargs)
        assert type(wanted) is float, wanted
        self.wanted = wanted

    def prompt(self, rng):
        return f"{rng.integers(10, 99)}="

    def reward(self, response):
        return self.wanted


class Subclassed(GRPO):
    """A user's algorithm: overrides one method."""

    def training_step(self):
        super().training_step()
        self.metrics.log_value("temperature_seen", self.config.temperature, window=1)


class KeepTrials(tune.Callback):
    """What Tune gave each trial, in this process."""

    trials: ClassVar = []

    def on_trial_start(self, iteration, trials, trial, **info):
        self.trials.append(trial)


def small_config() -> GRPOConfig:
    return (
        GRPOConfig()
        .sampling(max_response_tokens=4)
        .vllm(max_model_len=32, max_num_seqs=16)
        .env_runners(num_cpus_per_env_runner=0.5)
        .training(prompts_per_iteration=2, group_size=2)
        .debugging(seed=0)
    )


def test_two_algorithms_are_built_at_once_in_two_processes(ray_session):
    """Each with an engine and a learner of its own, which has a gloo process group: no port is shared."""

    @ray_session.remote(num_cpus=0)
    def build_and_train():
        started = time.time()
        algorithm = small_config().environment("rlhf_algos/Addition-v0").build_algo()
        ready = time.time()
        try:
            return os.getpid(), started, ready, algorithm.train()["training_iteration"]
        finally:
            algorithm.stop()

    first, second = ray_session.get([build_and_train.remote() for _ in range(2)])
    assert first[0] != second[0]
    assert max(first[1], second[1]) < min(first[2], second[2])
    assert first[3] == second[3] == 1


@pytest.fixture(scope="module")
def nested_sweep(ray_session, tmp_path_factory):
    """Four trials of which any two need more CPUs than there are."""
    config = small_config()
    config.environment(Share, env_config={"wanted": tune.grid_search([0.2, 0.4]), "split": "all"})
    config.sampling(temperature=tune.grid_search([0.5, 1.0]))
    # What other tests' actors leave over.
    config.resources(num_cpus_for_main_process=0.6 * ray_session.available_resources()["CPU"] - 0.9)
    results = tune.Tuner(
        Subclassed,
        param_space=config,
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path_factory.mktemp("nested")),
            stop={"training_iteration": 1},
            verbose=0,
            callbacks=[KeepTrials()],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    assert not results.errors
    return [result.metrics for result in results]


def test_trials_that_do_not_fit_at_once_run_one_after_another(nested_sweep):
    assert [metrics["training_iteration"] for metrics in nested_sweep] == [1, 1, 1, 1]
    # In one process, each on the processes of the one before.
    assert len({metrics["pid"] for metrics in nested_sweep}) == 1


def test_each_pair_of_values_occurs_once_and_reaches_environment_and_sampler(nested_sweep):
    pairs = [
        (round(metrics["env_runners"]["episode_return_mean"], 6), metrics["config"]["temperature"])
        for metrics in nested_sweep
    ]
    assert sorted(pairs) == [(0.2, 0.5), (0.2, 1.0), (0.4, 0.5), (0.4, 1.0)]


def test_an_overridden_method_acts_in_every_trial(nested_sweep):
    assert [m["temperature_seen"] for m in nested_sweep] == [m["config"]["temperature"] for m in nested_sweep]


def test_trial_configs_share_no_mutable_object(nested_sweep):
    containers = [{id(item) for item in containers_in(trial.config)} for trial in KeepTrials.trials]
    assert len(containers) == 4
    assert all(len(found) > 5 for found in containers)
    for number, found in enumerate(containers):
        assert not any(found & other for other in containers[:number])


def containers_in(value) -> Iterator[object]:
    """Every dict, list and set in a nested value."""
    if isinstance(value, dict | list | set):
        yield value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for item in value:
            yield from containers_in(item)


def test_a_trial_that_can_never_run_is_an_error_and_no_wait(ray_session, tmp_path):
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"need [.0-9]+ CPU \(available 8\)"):
        tune.Tuner(
            GRPO,
            param_space=small_config().environment("rlhf_algos/Addition-v0").learners(num_learners=100),
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        ).fit()
    assert time.monotonic() - started < 60


# ---- which processes trials share --------------------------------------------------------------------------------


def test_the_example_runs_all_its_trials_on_one_engine(ray_session, tmp_path):
    """Correctors, and trials with and without R3."""
    example = runpy.run_path(str(ROOT / "examples/sweep_corrections.py"))
    config = example["make_config"](iterations=1, prompts=2, problems=10)
    config.callbacks(on_train_result=record_engines)
    results = example["run"](config, 1, tmp_path / "sweep")
    assert not results.errors
    metrics = [result.metrics for result in results]
    chosen = [(str(m["config"]["corrector"]), m["config"]["router_replay"]) for m in metrics]
    assert len(set(chosen)) == 6
    assert len({m["engine_pid"] for m in metrics}) == 1
    learners = [m["learners"]["default_policy"] for m in metrics]
    # Every trial samples the same first batch.
    assert len({m["env_runners"]["episode_return_mean"] for m in metrics}) == 1
    for (corrector, replay), learner in zip(chosen, learners, strict=True):
        assert learner["route_mismatch"] >= 0
        assert (learner.get("replayed_fraction", 0) > 0) == (replay == "r3")
        assert (learner["tis_weight"] == 1) == (corrector == "none")
    assert all("evaluation" in m for m in metrics)


def test_a_trial_that_needs_another_engine_gets_one(ray_session, tmp_path, capsys):
    """Through the command; Tune hands on the actor all the same, and would fail the trial if its reset were refused."""
    config = {
        "algorithm": "tests.end_to_end.test_sweeps.CountedGRPO",
        "name": "engines",
        "iterations": 1,
        "evaluate_every": 0,
        "environment": {"env": "rlhf_algos/Addition-v0", "env_config": {"digits": 2}},
        "sampling": {"max_response_tokens": 4},
        "env_runners": {"num_cpus_per_env_runner": 0.5},
        "training": {"prompts_per_iteration": 4, "group_size": 2, "corrector": {"grid": ["none", "tis"]}},
        "vllm": {"max_model_len": 32, "dtype": {"grid": ["float32", "bfloat16"]}},
    }
    file = tmp_path / "engines.json"
    file.write_text(json.dumps(config))
    assert main(["sweep", str(file), "--runs", str(tmp_path / "runs"), "--quiet"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    files = [next(folder.glob(f"trial-{number}-*/result.json")) for number in range(1, 5)]
    results = [json.loads(file.read_text()) for file in files]
    dtypes = [result["config"]["vllm_args"]["dtype"] for result in results]
    engines = [result["engine_pid"] for result in results]
    assert dtypes == ["float32", "float32", "bfloat16", "bfloat16"]
    assert len({result["pid"] for result in results}) == 1
    assert engines[0] == engines[1] != engines[2] == engines[3]
    mismatch = [result["learners"]["default_policy"]["train_rollout_logprob_abs_diff"] for result in results]
    assert mismatch[0] < 1e-6 and mismatch[2] > 1e-4


# ---- train -------------------------------------------------------------------------------------------------------


def test_a_run_of_the_command_and_its_model(ray_session, tmp_path, capsys):
    from transformers import AutoModelForCausalLM

    status = main(
        [
            "train",
            str(ROOT / "examples/configs/addition_grpo.yaml"),
            *("--runs", str(tmp_path), "--iterations", "1"),
            *("--set", "training.prompts_per_iteration=4", "--set", "evaluation.evaluation_duration=10"),
            *("--set", "vllm.max_num_seqs=32", "--set", "training.lr=1e-3"),
        ]
    )
    shown, errors = capsys.readouterr()
    assert status == 0, errors
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "status.json").read_text()) == {"state": "finished", "error": None}
    assert "iteration 1/1  reward " in shown
    AutoModelForCausalLM.from_pretrained(folder / "model")
