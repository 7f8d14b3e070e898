"""Run folders and the picture."""

import math

import pytest

from rlhf_algos.report import RunFolder, plot_training, read_progress


def rows():
    return [
        {"iteration": 0, "evaluation": {"env_runners": {"episode_return_mean": 0.3, "greedy_return_mean": 0.6}}},
        {
            "iteration": 1,
            "env_runners": {"episode_return_mean": 0.4},
            "learners": {"default_policy": {"train_rollout_logprob_abs_diff": 1e-7, "mismatch_kl": 0.0}},
            "done": False,
            "text": "x",
            "bad": math.nan,
        },
    ]


def test_progress_is_written_as_it_goes_and_read_back(tmp_path):
    folder = RunFolder(tmp_path, "demo")
    for row in rows():
        folder.append(row["iteration"], {k: v for k, v in row.items() if k != "iteration"})
    found = read_progress(folder.path)
    assert found[0] == {
        "iteration": 0,
        "evaluation/env_runners/episode_return_mean": 0.3,
        "evaluation/env_runners/greedy_return_mean": 0.6,
    }
    assert found[1] == {
        "iteration": 1,
        "env_runners/episode_return_mean": 0.4,
        "learners/default_policy/train_rollout_logprob_abs_diff": 1e-7,
        "learners/default_policy/mismatch_kl": 0.0,
    }


def test_a_cut_off_or_foreign_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        read_progress(tmp_path)
    (tmp_path / "progress.jsonl").write_text('{"iteration": 1}\n{"iterat')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_progress(tmp_path)


def test_the_picture_is_a_png_and_needs_a_reward(tmp_path):
    folder = RunFolder(tmp_path, "demo")
    for row in rows():
        folder.append(row["iteration"], {k: v for k, v in row.items() if k != "iteration"})
    path = plot_training(read_progress(folder.path), tmp_path / "plot.png", title="t")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(ValueError, match="Nothing to draw: none of the 1 rows"):
        plot_training([{"iteration": 1}], tmp_path / "none.png", title="t")
