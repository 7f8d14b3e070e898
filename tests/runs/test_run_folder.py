"""What a run writes into its folder."""

import json
from pathlib import Path

import numpy as np
import pytest

from rlhf_algos.runs import RunFolder
from tests.report.hand_made import sample


class Callback:
    pass


def test_the_configuration_is_written_with_the_format(tmp_path):
    folder = RunFolder(tmp_path, "run")
    folder.write_config(
        {
            "algorithm": "GRPO",
            "env_config": {"digits": np.int64(2), "split": None},
            "betas": (0.9, 0.999),
            "callbacks": Callback,
            "model": Path("a/b"),
            "object": object(),
            "names": {"b", "a"},
        }
    )
    written = json.loads((folder.path / "config.json").read_text())
    assert written == {
        "format": "rlhf_algos.RunFolder",
        "format_version": 1,
        "algorithm": "GRPO",
        "env_config": {"digits": 2, "split": None},
        "betas": [0.9, 0.999],
        "callbacks": f"{__name__}.Callback",
        "model": "a/b",
        "object": "<object object>",
        "names": ["a", "b"],
    }


def test_an_option_may_not_take_the_name_of_the_format(tmp_path):
    with pytest.raises(ValueError, match=r"must not have the options \['format'\]"):
        RunFolder(tmp_path, "run").write_config({"format": "x"})


def test_the_last_status_counts_and_no_half_file_is_left(tmp_path):
    folder = RunFolder(tmp_path, "run")
    folder.set_status("running")
    folder.set_status("failed", "ValueError: boom")
    assert json.loads((folder.path / "status.json").read_text()) == {"state": "failed", "error": "ValueError: boom"}
    assert [entry.name for entry in folder.path.iterdir()] == ["status.json"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, "run")
    folder.set_status("running")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        folder.set_status("finished")
    assert json.loads((folder.path / "status.json").read_text())["state"] == "running"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("done",), "use one of running, finished, interrupted, failed"),
        (("finished", "boom"), "an error belongs to the state 'failed'"),
    ],
)
def test_a_wrong_status_is_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        RunFolder(tmp_path, "run").set_status(*arguments)


def test_samples_are_written_one_a_line(tmp_path):
    folder = RunFolder(tmp_path, "run")
    folder.append_samples(3, [sample(q=np.array([-0.5, -0.25])), sample(prompt="a\nb")])
    folder.append_samples(4, [sample()])
    lines = [json.loads(line) for line in (folder.path / "samples.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [3, 3, 4]
    assert lines[0] == {"iteration": 3} | sample(tokens=["2", "<eos>"], q=[-0.5, -0.25], p0=[-0.1, -0.7])
    assert lines[1]["prompt"] == "a\nb"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (sample(q=(-0.1,)), "sample 1: 2 tokens, but 1 rollout_logprobs"),
        (sample(p0=(-0.1, float("nan"))), "sample 1: old_logprobs is not a list of finite numbers"),
        ({"prompt": "x", "reward": 1.0}, "sample 1: tokens, rollout_logprobs, old_logprobs missing"),
        (sample(tokens=(1, 2)), "sample 1: tokens is not a list of text"),
        (sample(prompt=3), "sample 1: prompt is not text"),
        (sample(reward=None), "sample 1: iteration and reward must be finite numbers"),
    ],
)
def test_a_wrong_sample_is_refused_and_none_is_written(tmp_path, wrong, message):
    folder = RunFolder(tmp_path, "run")
    with pytest.raises(ValueError, match=message):
        folder.append_samples(1, [sample(), wrong])
    assert not (folder.path / "samples.jsonl").exists()


def test_two_runs_of_one_second_have_two_folders(tmp_path):
    folders = {RunFolder(tmp_path, "run").path for _ in range(5)}
    assert len(folders) == 5
    assert all(path.is_dir() for path in folders)
