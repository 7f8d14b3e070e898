"""The examples run as a user runs them, in a short form."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_example(name, *arguments):
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return run.stdout


def test_replay_of_a_saved_batch(tmp_path):
    lines = run_example("replay_saved_batch.py", "--folder", tmp_path, "--prompts", 4).splitlines()
    assert "32 answers" in lines[0]
    # Extensions may report that they were built, once on a machine.
    rows = [line for line in lines if line[:4] in ("none", "is  ", "is +", "tis ", "icep")]
    settings = [line.split("  ")[0] for line in rows]
    assert len(settings) == 16 and settings[0] == "none" and "icepop + centered + r3" in settings
    assert float(rows[0].split()[-4]) == pytest.approx(1.0)


def test_training_from_python(tmp_path):
    output = run_example("demo.py", "--iterations", 1, "--runs", tmp_path)
    assert "Held-out accuracy after:" in output
    (folder,) = tmp_path.iterdir()
    assert {"progress.jsonl", "reward_and_mismatch.png", "model"} <= {file.name for file in folder.iterdir()}
