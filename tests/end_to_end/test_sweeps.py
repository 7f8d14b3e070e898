"""Sweeps on real engines: which processes trials share."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from ray import tune

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.driver.calls import on_env_runners
from rlhf_algos.envs import PromptEnv


def record_engines(algorithm, metrics_logger, result):
    """A callback: which processes an iteration ran in."""
    (result["engine_pid"],) = on_env_runners(algorithm.env_runner_group, lambda runner: os.getpid()).values()


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


def test_two_trials_at_once_of_a_class_in_a_users_script(ray_session, tmp_path):
    """Each with an engine and a learner of its own, which has a gloo process group: no port is shared."""

    class InThisFunction(Share):
        """Reaches the actors as a value: no module has it."""

    class Timed(GRPO):
        def setup(self, config):
            self.started = time.time()
            super().setup(config)
            self.ready = time.time()

        def step(self):
            return super().step() | {"started": self.started, "ready": self.ready}

    results = tune.Tuner(
        Timed,
        param_space=small_config().environment(
            InThisFunction, env_config={"wanted": tune.grid_search([0.25, 0.5]), "split": "all"}
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            stop={"training_iteration": 1},
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    assert not results.errors
    first, second = (result.metrics for result in results)
    assert [each["env_runners"]["episode_return_mean"] for each in (first, second)] == [0.25, 0.5]
    assert first["pid"] != second["pid"]
    assert max(first["started"], second["started"]) < min(first["ready"], second["ready"])
    for result in results:
        names = {file.name for file in Path(result.path).iterdir()}
        assert {"result.json", "progress.csv"} <= names
        assert any(name.startswith("events.out.tfevents") for name in names)


@pytest.fixture(scope="module")
def nested_sweep(ray_session, tmp_path_factory):
    """Four trials of which any two need more CPUs than there are, and of which the last two need another engine."""
    config = small_config().callbacks(on_train_result=record_engines)
    config.environment(Share, env_config={"wanted": tune.grid_search([0.2, 0.4]), "split": "all"})
    config.sampling(temperature=tune.grid_search([0.5, 1.0]))
    config.vllm(dtype=tune.sample_from(lambda spec: {0.5: "float32", 1.0: "bfloat16"}[spec.config.temperature]))
    config.training(corrector=tune.sample_from(lambda spec: {0.2: "none", 0.4: "tis"}[spec.config.env_config.wanted]))
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
    # In one process.
    assert len({metrics["pid"] for metrics in nested_sweep}) == 1


def test_a_trial_that_needs_another_engine_gets_one(nested_sweep):
    """Tune hands on the actor all the same, and would fail the trial if its reset were refused."""
    found = {metrics["config"]["vllm_args"]["dtype"]: set() for metrics in nested_sweep}
    for metrics in nested_sweep:
        dtype = metrics["config"]["vllm_args"]["dtype"]
        found[dtype].add(metrics["engine_pid"])
        mismatch = metrics["learners"]["default_policy"]["train_rollout_logprob_abs_diff"]
        assert mismatch < 1e-6 if dtype == "float32" else mismatch > 1e-4
    # One for all trials of a kind.
    assert [len(pids) for pids in found.values()] == [1, 1] and found["float32"] != found["bfloat16"]


def test_each_pair_of_values_occurs_once_and_reaches_environment_and_sampler(nested_sweep):
    pairs = [
        (round(metrics["env_runners"]["episode_return_mean"], 6), metrics["config"]["temperature"])
        for metrics in nested_sweep
    ]
    assert sorted(pairs) == [(0.2, 0.5), (0.2, 1.0), (0.4, 0.5), (0.4, 1.0)]


def test_the_corrector_of_a_trial_reaches_its_learner(nested_sweep):
    for metrics in nested_sweep:
        learner = metrics["learners"]["default_policy"]
        corrector = metrics["config"]["corrector"]
        assert (corrector, "tis_clipfrac" in learner) in (("none", False), ("tis", True))
        # In bfloat16 the sampler's probabilities differ, and so the weights do.
        differs = corrector == "tis" and metrics["config"]["vllm_args"]["dtype"] == "bfloat16"
        assert (abs(learner["tis_weight"] - 1) > 1e-5) == differs


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
