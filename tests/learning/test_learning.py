"""The slow promise: both algorithms learn two-digit addition with seeds 0, 1 and 2 (`make learning`)."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.learning
@pytest.mark.parametrize("algorithm", ["grpo", "reinforce_sc"])
def test_every_seed_learns_within_five_minutes(tmp_path, algorithm):
    command = [sys.executable, "benchmarks/learning.py", "--algorithm", algorithm]
    command += ["--json", str(tmp_path / "learning.json")]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
