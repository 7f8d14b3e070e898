"""The slow promise: GRPO learns two-digit addition with seeds 0, 1 and 2 (`make learning`)."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.learning
def test_every_seed_learns_within_five_minutes(tmp_path):
    command = [sys.executable, "benchmarks/learning.py", "--json", str(tmp_path / "learning.json")]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
