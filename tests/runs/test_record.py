"""The loop of a run: what it does in which order, and what its folder has afterwards."""

import json

import pytest

from rlhf_algos.runs import RunFolder, read_progress, record_run, recorded_state, train_and_evaluate
from tests.report.hand_made import sample

EVALUATED = "evaluation/env_runners/episode_return_mean"


class Trainee:
    """Says what it is asked for; `evaluates_itself` in every iteration, as with an interval of its own."""

    def __init__(self, evaluates_itself=False):
        self.calls, self.evaluates_itself = [], evaluates_itself

    def train(self):
        self.calls.append("train")
        reward = {"env_runners": {"episode_return_mean": 0.25}}
        return reward | ({"evaluation": self._evaluation(0.75)} if self.evaluates_itself else {})

    def evaluate(self):
        self.calls.append("evaluate")
        return self._evaluation(0.5)

    def _evaluation(self, value):
        return {"env_runners": {"episode_return_mean": value}}

    def shown_responses(self):
        self.calls.append("show")
        return [sample()]


def test_the_loop_evaluates_before_at_its_interval_and_at_the_end():
    trainee = Trainee()
    numbers = [(number, "evaluation" in result) for number, result in train_and_evaluate(trainee, 3, evaluate_every=2)]
    assert numbers == [(0, True), (1, False), (2, True), (3, True)]
    assert trainee.calls == ["evaluate", "train", "train", "evaluate", "train", "evaluate"]


def test_without_an_interval_nothing_is_evaluated_and_the_last_responses_are_shown(tmp_path):
    trainee, folder = Trainee(), RunFolder(tmp_path, "run")
    record_run(trainee, 2, folder)
    assert trainee.calls == ["train", "train", "show"]
    assert [row["iteration"] for row in read_progress(folder.path)] == [1, 2]
    (line,) = (folder.path / "samples.jsonl").read_text().splitlines()
    assert json.loads(line)["iteration"] == 2


def test_an_evaluation_that_the_iteration_had_is_not_repeated():
    trainee = Trainee(evaluates_itself=True)
    results = [result for _, result in train_and_evaluate(trainee, 2, evaluate_every=1)]
    assert trainee.calls == ["evaluate", "train", "train"]
    assert [r["evaluation"]["env_runners"]["episode_return_mean"] for r in results] == [0.5, 0.75, 0.75]


def test_what_is_told_is_what_is_written_and_a_stopped_run_ends_after_its_iteration(tmp_path):
    trainee, folder, told = Trainee(), RunFolder(tmp_path, "run"), []
    record_run(
        trainee,
        5,
        folder,
        evaluate_every=2,
        tell=lambda number, row: told.append((number, dict(row))),
        stopped=lambda: trainee.calls.count("train") >= 2,
    )
    # Asked before the evaluation of the second iteration, too.
    assert trainee.calls == ["evaluate", "train", "train", "show"]
    assert [row for _, row in told] == read_progress(folder.path)
    assert [EVALUATED in row for _, row in told] == [True, False, False]


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (None, "finished", None),
        (KeyboardInterrupt(), "interrupted", None),
        (ValueError("boom"), "failed", "ValueError: boom"),
    ],
)
def test_the_folder_says_how_the_run_ended(tmp_path, error, state, text):
    folder = RunFolder(tmp_path, "run")

    def status():
        return json.loads((folder.path / "status.json").read_text())

    def run():
        with recorded_state(folder):
            assert status() == {"state": "running", "error": None}
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    assert status() == {"state": state, "error": text}
