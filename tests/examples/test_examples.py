"""The examples run as a user runs them, in a short form."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_algos.report import write_report
from rlhf_algos.report.discovery import read_runs

ROOT = Path(__file__).parents[2]


def run_example(name, *arguments):
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return run.stdout


def test_replay_of_a_saved_batch(ray_session, tmp_path, monkeypatch, capsys):
    """In this process and its Ray; the demo is run as a script."""
    monkeypatch.setattr("rlhf_algos.local_ray.start_ray", lambda **options: None)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr(sys, "argv", ["replay_saved_batch.py", "--folder", str(tmp_path), "--prompts", "4"])
    runpy.run_path(str(ROOT / "examples" / "replay_saved_batch.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert "32 answers" in lines[0]
    # Extensions may report that they were built, once on a machine.
    rows = [line for line in lines if line[:4] in ("none", "is  ", "is +", "tis ", "icep")]
    settings = [line.split("  ")[0] for line in rows]
    assert len(settings) == 16 and settings[0] == "none" and "icepop + centered + r3" in settings
    assert float(rows[0].split()[-4]) == pytest.approx(1.0)


def test_the_demo_leaves_a_run_that_the_report_knows(tmp_path):
    output = run_example("demo.py", "--iterations", 1, "--seed", 3, "--runs", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("demo-")
    assert "Held-out after 0 iterations: " in output and "Held-out after 1 iterations: " in output
    for shown in (folder, folder / "model", folder / "reward_and_mismatch.png"):
        assert str(shown) in output
    report = write_report([folder], tmp_path / "report")
    page = report.page.read_text()
    assert report.notes == ()
    (run,) = read_runs([folder])
    assert (run.state, run.seed, sorted(run.rows)) == ("finished", 3, [0, 1])
    assert run.config["training"]["lr"] == [[0, 3e-4], [512, 0.0]]
    assert run.config["evaluation"]["evaluation_duration"] == 500
    assert run.rows[1]["evaluation/env_runners/num_episodes"] == 500
    assert "sample responses" in page.lower() and len(run.samples) > 0
    # Nothing is corrected, so nothing is said of a correction.
    assert not any("tis_clipfrac" in key for row in run.rows.values() for key in row)
    assert "tis_clipfrac" not in output and "weight changed" not in report.table.read_text()
