"""`rlhf-algos train` with an algorithm that needs no engine: files, lines, exit statuses, Ctrl-C."""

import json
import signal

import pytest

from rlhf_algos.cli import main
from rlhf_algos.report import read_progress

pytestmark = pytest.mark.usefixtures("ray_session")


def status_of(folder):
    return json.loads((folder / "status.json").read_text())


def test_a_run_leaves_everything_in_its_folder(command, run_folder, tmp_path):
    status, shown, errors = command("train", "--set", "debugging.seed=7")
    folder = run_folder()
    assert (status, errors) == (0, "")
    assert folder.name.startswith("toy-")
    assert {file.name for file in folder.iterdir()} >= {"model", "reward_and_mismatch.png", "progress.jsonl"}
    assert status_of(folder) == {"state": "finished", "error": None}
    config = json.loads((folder / "config.json").read_text())
    assert (config["algorithm"], config["iterations"], config["debugging"]["seed"]) == (
        "tests.commands.toy_algorithm.Toy",
        3,
        7,
    )
    rows = read_progress(folder)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    evaluated = [row["iteration"] for row in rows if "evaluation/env_runners/episode_return_mean" in row]
    # Before, every second one, and the last.
    assert evaluated == [0, 2, 3]
    lines = shown.splitlines()
    assert "iteration 0/3  held-out 0.500  greedy 0.750" in lines
    line = next(line for line in lines if line.startswith("iteration 1/3"))
    assert line.startswith("iteration 1/3  reward 0.100  mismatch 1.0e-02  tis_clipfrac 0.250  s/iteration ")
    assert any(line.startswith("iteration 3/3  reward 0.300  held-out 0.500") for line in lines)
    assert f"Run folder:    {folder}" in lines
    assert "\x1b" not in shown
    # What is recorded can be run again.
    assert main(["train", str(folder / "config.json"), "--runs", str(tmp_path / "again"), "--quiet"]) == 0


def test_iterations_on_the_command_line_and_no_evaluation(command, run_folder):
    status, _, _ = command("train", "--iterations", "1", evaluate_every=0)
    assert status == 0
    (row,) = read_progress(run_folder())
    assert row["iteration"] == 1
    assert not any(key.startswith("evaluation") for key in row)


def test_a_long_run_has_a_line_for_every_tenth_iteration(command):
    _, shown, _ = command("train", iterations=23, evaluate_every=0)
    numbers = [line.split()[1] for line in shown.splitlines() if line.startswith("iteration")]
    assert numbers == ["10/23", "20/23", "23/23"]


def test_quiet_prints_the_folder_alone(command, run_folder):
    status, shown, errors = command("train", "--quiet")
    assert (status, shown, errors) == (0, f"{run_folder()}\n", "")


def test_one_ctrl_c_finishes_the_iteration_and_saves(command, run_folder):
    before = signal.getsignal(signal.SIGINT)
    status, shown, _ = command("train", env_config={"interrupt_at": 2})
    folder = run_folder()
    assert status == 130
    assert status_of(folder)["state"] == "interrupted"
    assert [row["iteration"] for row in read_progress(folder)] == [0, 1, 2]
    assert (folder / "model").is_dir() and (folder / "reward_and_mismatch.png").is_file()
    assert "Stopping after this iteration; press Ctrl-C again to stop at once." in shown
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_stops_at_once(command, run_folder):
    status, _, _ = command("train", env_config={"interrupt_at": 2, "interrupts": 2})
    folder = run_folder()
    assert status == 130
    assert status_of(folder)["state"] == "interrupted"
    assert [row["iteration"] for row in read_progress(folder)] == [0, 1]
    assert not (folder / "model").exists()


def test_a_run_that_fails_says_why_in_one_line(command, run_folder):
    status, _, errors = command("train", env_config={"fail_at": 2})
    folder = run_folder()
    assert status == 1
    assert status_of(folder) == {"state": "failed", "error": "ValueError: the environment broke in iteration 2"}
    assert errors.splitlines() == [
        "rlhf-algos train: the run failed: ValueError: the environment broke in iteration 2",
        f"The whole error: {folder / 'error.txt'}",
    ]
    assert "Traceback" in (folder / "error.txt").read_text()
    assert len(read_progress(folder)) == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lr=-1e-3", "training(lr=-0.001) must be a finite number of at least 0"),
        ("sampling.temperature=.inf", "sampling(temperature=inf) must be a finite number of at least 0"),
        ("language_model.path=./nowhere", "there is no such folder"),
        ("training.train_batch_size_per_learner=128", "training(train_batch_size_per_learner=128) has no effect here"),
        ("evaluation.evaluation_config={temperature: .nan}", "{'temperature': nan}) must be a finite number"),
    ],
)
def test_a_wrong_value_is_an_exit_status_and_no_folder(command, tmp_path, override, message):
    status, shown, errors = command("train", "--set", override)
    assert (status, shown) == (2, "")
    assert message in errors
    assert not (tmp_path / "runs").exists()


def test_what_can_not_be_recorded_is_an_exit_status_and_no_folder(command, tmp_path):
    status, shown, errors = command("train", "--set", "algorithm=tests.commands.test_run_config.Toyish")
    assert (status, shown) == (2, "")
    assert errors.startswith("rlhf-algos train: Undeclared.training(my_weight=...): its value can't be recorded.")
    assert not (tmp_path / "runs").exists()


def test_without_a_seed_each_run_draws_one_and_records_it(command, tmp_path):
    for _ in range(2):
        assert command("train", "--quiet", debugging={}, iterations=1)[0] == 0
    configs = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*/config.json")]
    first, second = (config["debugging"]["seed"] for config in configs)
    assert type(first) is int and type(second) is int and first != second
    # The record repeats the run.
    folder = next((tmp_path / "runs").iterdir())
    assert main(["train", str(folder / "config.json"), "--runs", str(tmp_path / "again"), "--quiet"]) == 0
    (again,) = (tmp_path / "again").glob("*/config.json")
    assert json.loads(again.read_text()) == json.loads((folder / "config.json").read_text())


def test_a_line_at_the_start_says_who_has_how_many_threads(command, monkeypatch):
    from rlhf_algos.driver import placement

    monkeypatch.setattr(placement, "usable_cores", lambda: 6)
    _, shown, _ = command(
        "train", iterations=1, env_runners={"num_env_runners": 2}, learners={"num_threads_per_learner": 4}
    )
    assert "Threads: 2 x 3 while sampling, 1 x 4 while updating, of 6 cores." in shown.splitlines()


def test_a_wrong_configuration_is_one_message_and_no_folder(command, tmp_path):
    status, shown, errors = command("train", "--set", "training.grop_size=4")
    assert (status, shown) == (2, "")
    assert errors == "rlhf-algos train: --set: training.grop_size is no known key. Did you mean training.group_size?\n"
    assert not (tmp_path / "runs").exists()


def test_arguments_that_argparse_refuses(capsys):
    for arguments in (["train"], ["train", "a.yaml", "--iterations", "0"], ["sweep"], ["sweep", "a", "--resume", "b"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
