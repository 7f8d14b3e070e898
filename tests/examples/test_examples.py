"""The examples run as a user runs them, in a short form."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.driver.crew import Crew
from rlhf_algos.driver.publication import Publication
from rlhf_algos.report import write_report
from rlhf_algos.runs.discovery import read_runs
from rlhf_algos.weight_sync import NO_INJECTION, channel_maker
from tests.algorithms.test_publication import LearnersOfOneNumber
from tests.fake_engine import FakeGroup, new_runner

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


def test_a_channel_of_ones_own():
    assert run_example("my_channel.py").splitlines() == ["version 1 arrived bit for bit", "version 0 is gone"]


def test_a_run_publishes_on_a_channel_of_ones_own(tmp_path, monkeypatch):
    """Named by its path, as a configuration file would; its copies are the two ends."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    config = GRPOConfig().environment("rlhf_algos/Addition-v0")
    config.env_runners(weight_channel={"type": "my_channel.NetworkFolder", "folder": str(tmp_path)})
    config.validate()
    channel = channel_maker(config.weight_channel)()
    learners, group = LearnersOfOneNumber(), FakeGroup([new_runner(config.debugging(seed=0))])
    group.runners[1].checkpoint_layout = {"w": (2,)}
    crew = Crew(group, config, 0)
    publication = Publication(channel, learners, crew, is_received=True, injection=NO_INJECTION, seed=0)
    for version in range(3):
        publication.publish(version)
        assert group.runners[1].engine.loaded["w"].tolist() == [version, version]
        assert [file.name for file in channel.folder.iterdir()] == [f"{version}.safetensors"]
    for _ in range(2):
        channel.close()
        assert list(tmp_path.iterdir()) == []


def test_that_channel_takes_one_tensor_under_two_names(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    channel = channel_maker({"type": "my_channel.NetworkFolder", "folder": str(tmp_path)})()
    head = torch.arange(6.0)
    channel.send({"embedding": head, "head": head}, 0)
    received = channel.receive(0)
    assert received["embedding"].tolist() == received["head"].tolist() == head.tolist()
    channel.close()
