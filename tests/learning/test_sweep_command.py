"""Sweeps by the command and by the example, on real engines (`make learning`); `make test` has their parts."""

import json
import os
import runpy
from pathlib import Path

import pytest

from rlhf_algos.algorithms.grpo import GRPO
from rlhf_algos.cli import main
from rlhf_algos.driver.calls import on_env_runners

ROOT = Path(__file__).parents[2]


def engine_of_result(algorithm, metrics_logger, result):
    """A callback: which process an iteration sampled in."""
    (result["engine_pid"],) = on_env_runners(algorithm.env_runner_group, lambda runner: os.getpid()).values()


class CountedGRPO(GRPO):
    """Says which process its engine runs in; a configuration file has no callbacks."""

    def step(self):
        result = super().step()
        engine_of_result(self, None, result)
        return result


@pytest.mark.learning
def test_a_trial_that_needs_another_engine_gets_one(ray_session, tmp_path, capsys):
    config = {
        "algorithm": "tests.learning.test_sweep_command.CountedGRPO",
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


@pytest.mark.learning
def test_the_example_runs_all_its_trials_on_one_engine(ray_session, tmp_path):
    """Correctors, and trials with and without R3."""
    example = runpy.run_path(str(ROOT / "examples/sweep_corrections.py"))
    config = example["make_config"](iterations=1, prompts=2, problems=10)
    config.callbacks(on_train_result=engine_of_result)
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
