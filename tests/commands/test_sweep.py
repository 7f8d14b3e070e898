"""`rlhf-algos sweep` with an algorithm that needs no engine: order, failures, Ctrl-C, resuming, stopping."""

import json
import os
import re
import signal

import pytest

from rlhf_algos.cli import main


@pytest.fixture
def log(tmp_path):
    """The iterations that ran so far, as (scale, iteration)."""

    def read():
        lines = (tmp_path / "log").read_text().splitlines()
        return [(float(scale), int(number)) for scale, number in map(str.split, lines)]

    return read


def table_in(shown):
    """The rows of the final table, as dicts."""
    lines = shown.splitlines()
    start = next(number for number, line in enumerate(lines) if " state " in line)
    names = lines[start].split()
    rows = []
    for line in lines[start + 1 :]:
        if not line:
            break
        rows.append(dict(zip(names, re.split(r" {2,}", line), strict=True)))
    return rows


def test_a_failure_an_interrupt_and_two_resumes(ray_session, command, run_folder, log, tmp_path, capsys):
    """Which trial failed and why is said, the others finish, and nothing runs twice."""
    files = {name: str(tmp_path / name) for name in ("log", "repaired", "interrupted")}
    trouble = [
        {"fail_at": 9},
        {"fail_at": 2, "repaired": files["repaired"]},
        {"interrupt_at": 2, "interrupt": os.getpid(), "interrupted": files["interrupted"]},
        {"fail_at": 9},
    ]
    trials = [{"scale": number, "log": files["log"]} | settings for number, settings in enumerate(trouble, 1)]
    before = signal.getsignal(signal.SIGINT)

    status, shown, errors = command("sweep", env_config={"grid": trials}, evaluate_every=1)

    folder = run_folder()
    assert status == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert [row["state"] for row in table_in(shown)] == ["finished", "failed", "interrupted"]
    assert f"Interrupted. Run what is missing with: rlhf-algos sweep --resume {folder}" in errors
    assert log() == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2)]

    status = main(["sweep", "--resume", str(folder)])

    shown, errors = capsys.readouterr()
    assert status == 1
    assert [row["state"] for row in table_in(shown)] == ["finished", "failed", "finished", "finished"]
    assert [row["iterations"] for row in table_in(shown)] == ["3", "1", "3", "3"]
    failures = [line for line in errors.splitlines() if line.startswith("failed")]
    assert len(failures) == 1
    assert '"scale": 2' in failures[0] and "ValueError: the environment broke in iteration 2" in failures[0]
    assert f"Report:  rlhf-algos report {folder}" in shown
    # The interrupted trial started over; the finished and the failed one did not run again.
    assert log()[7:] == [(3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3)]

    (tmp_path / "repaired").touch()
    status = main(["sweep", "--resume", str(folder), "--retry-failed", "--quiet"])

    shown, errors = capsys.readouterr()
    assert (status, shown, errors) == (0, f"{folder}\n", "")
    assert log()[13:] == [(2, 1), (2, 2), (2, 3)]


def test_trials_run_on_one_actor_in_turn_and_can_be_stopped_early(ray_session, command, run_folder, log, tmp_path):
    status, shown, errors = command(
        "sweep",
        env_config={"scale": {"grid": [1.0, 3.0, 0.5]}, "log": str(tmp_path / "log")},
        training={"corrector": {"grid": [{"type": "tis", "high": 3.0}]}},
        iterations=4,
        evaluate_every=3,
        sweep={
            "stop": {"env_runners/episode_return_mean": 0.5, "evaluation/nothing": 1},
            "scheduler": {
                "type": "asha",
                "metric": "env_runners/episode_return_mean",
                "mode": "max",
                "grace_period": 1,
                "reduction_factor": 2,
            },
        },
    )
    assert (status, errors) == (0, "")
    # The first runs to its end, the second reaches the value, the third is worse than both at the first rung.
    assert log() == [(1, 1), (1, 2), (1, 3), (1, 4), (3, 1), (3, 2), (0.5, 1)]
    rows = table_in(shown)
    assert [(row["scale"], row["corrector"], row["iterations"]) for row in rows] == [
        ("1.0", "tis(high=3.0)", "4"),
        ("3.0", "tis(high=3.0)", "2"),
        ("0.5", "tis(high=3.0)", "1"),
    ]
    assert "evaluate_every=3 does not divide 4 iterations: the last evaluation is after 3." in shown
    assert "sweep.stop: no trial measured evaluation/nothing, so it stopped none." in shown
    folders = sorted(path for path in run_folder().iterdir() if path.is_dir())
    assert [path.name for path in folders] == [
        f"trial-{number}-scale={scale},corrector=tis-high=3.0" for number, scale in enumerate(("1.0", "3.0", "0.5"), 1)
    ]
    pids = set()
    for path in folders:
        results = [json.loads(line) for line in (path / "result.json").read_text().splitlines()]
        pids |= {result["pid"] for result in results}
        assert all(isinstance(result["config"]["env_config"]["scale"], float) for result in results)
    assert len(pids) == 1


def test_a_trial_that_the_cluster_has_no_room_for_is_refused_before_any_runs(ray_session, command, tmp_path):
    status, _, errors = command("sweep", learners={"num_learners": {"grid": [1, 900]}})
    assert status == 2
    assert re.search(r"The algorithm's processes need [\d.]+ CPU \(available 8\)\.", errors)
    assert errors.endswith("This is the trial with learners.num_learners=900.\n")
    assert not (tmp_path / "runs").exists()


def test_a_wrong_value_of_one_trial_is_found_before_any_runs(command, tmp_path):
    status, _, errors = command("sweep", sampling={"top_p": {"grid": [1.0, 2.0]}}, seeds=[0, 1], debugging={})
    assert status == 2
    assert "sampling(top_p=2.0) must be a finite number above 0 and at most 1" in errors
    assert errors.endswith("This is the trial with sampling.top_p=2.0, debugging.seed=0.\n")
    assert not (tmp_path / "runs").exists()


def test_a_folder_without_a_sweep_can_not_be_resumed(ray_session, tmp_path, capsys):
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert f"{tmp_path} is not the folder of a sweep: it has no sweep.json." in capsys.readouterr().err
    config = {
        "algorithm": "tests.commands.toy_algorithm.Toy",
        "iterations": 1,
        "environment": {"env": "rlhf_algos/Addition-v0"},
    }
    (tmp_path / "sweep.json").write_text(json.dumps(config))
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert "no trial of this sweep has been recorded; start it again with" in capsys.readouterr().err
    (tmp_path / "tuner.pkl").touch()
    (tmp_path / "experiment_state-1.json").write_text('{"trial_da')
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert "experiment_state-1.json is damaged" in capsys.readouterr().err
