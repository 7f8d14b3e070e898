"""The slow promise: every algorithm learns two-digit addition (`make learning`)."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.learning
@pytest.mark.parametrize(
    ("algorithm", "seeds"), [("grpo", "0 1 2"), ("reinforce_sc", "0 1 2"), ("rloo", "0"), ("gspo", "0")]
)
def test_every_seed_learns_within_five_minutes(tmp_path, algorithm, seeds):
    command = [sys.executable, "benchmarks/learning.py", "--algorithm", algorithm, "--seeds", *seeds.split()]
    command += ["--runs", str(tmp_path / "runs"), "--json", str(tmp_path / "learning.json")]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
