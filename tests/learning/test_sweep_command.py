"""A sweep by the command, on real engines (`make learning`); `make test` has its parts and Tune's way there."""

import json
import os
from pathlib import Path

import pytest

from rlhf_algos.algorithms.grpo import GRPO
from rlhf_algos.cli import main
from rlhf_algos.driver.calls import on_env_runners


class CountedGRPO(GRPO):
    """Says which process its engine runs in; a configuration file has no callbacks."""

    def step(self):
        result = super().step()
        (result["engine_pid"],) = on_env_runners(self.env_runner_group, lambda runner: os.getpid()).values()
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
