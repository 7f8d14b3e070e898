"""Finding and reading runs: ours and Ray Tune's, whole and damaged."""

import json

import pytest

from rlhf_algos.runs.discovery import read_runs
from tests.report.hand_made import REWARD, run_folder, sample, trial_folder


def edit_json(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_run_folder_is_read_whole(tmp_path):
    path = run_folder(
        tmp_path, {"seed": 3, "lr": 0.1}, [{REWARD: 0.25}, {REWARD: 0.75}], state="finished", samples=[sample()]
    )
    (run,) = read_runs([path])
    assert run.path == path
    assert run.config == {"algorithm": "GRPO", "seed": 3, "lr": 0.1}
    assert run.values(REWARD) == {1: 0.25, 2: 0.75}
    assert (run.state, run.error, run.seed, run.notes) == ("finished", None, 3, ())
    assert run.samples[0].tokens == ("2", "<eos>")
    assert run.samples[0].old_logprobs == (-0.1, -0.7)


def test_a_sweep_is_searched_at_any_depth_and_each_run_read_once(tmp_path):
    sweep = tmp_path / "sweep"
    paths = [run_folder(sweep / place, {"seed": seed}) for seed, place in enumerate(("run-2", "run-10/deep", "run-10"))]
    (sweep / "link").symlink_to(sweep)
    (sweep / ".hidden").mkdir()
    (sweep / ".hidden" / "progress.jsonl").write_text("{}\n{}")
    # A model in a run's folder has a config.json of its own.
    (paths[0] / "model").mkdir()
    (paths[0] / "model" / "config.json").write_text('{"model_type": "qwen3_moe"}')
    runs = read_runs([sweep, paths[1], sweep / "run-2"])
    assert [run.path for run in runs] == [paths[0], paths[1], paths[2]]


def test_a_trial_that_tune_wrote_is_read(tmp_path):
    config = {"corrector": "tis", "seed": 1, "env_config": {"digits": 2}}
    results = [
        {"env_runners": {"episode_return_mean": 0.5, "empty": float("nan")}, "done": False},
        {"env_runners": {"episode_return_mean": 0.75}, "done": True, "timers": {"sample": 2.0}},
    ]
    path = trial_folder(tmp_path / "exp", config, results)
    (run,) = read_runs([path])
    assert run.config == config
    assert run.rows[2] == {"training_iteration": 2, REWARD: 0.75, "timers/sample": 2.0}
    assert run.values("env_runners/empty") == {}
    assert (run.state, run.seed) == ("finished", 1)


def test_the_state_of_trials_is_the_experiments(tmp_path):
    result = {"env_runners": {"episode_return_mean": 0.5}, "done": False}
    experiment = tmp_path / "exp"
    trial_folder(experiment, {"seed": 0}, [result], status="TERMINATED")
    trial_folder(experiment, {"seed": 1}, [], failure=ValueError("log q is nan"), status="ERROR")
    trial_folder(experiment, {"seed": 2}, [result], status="PAUSED", trainable="ReinforceSC")
    runs = read_runs([tmp_path])
    assert [(run.state, run.config["algorithm"]) for run in runs] == [
        ("finished", "GRPO"),
        ("failed", "GRPO"),
        ("running", "ReinforceSC"),
    ]
    assert runs[1].reason == "log q is nan"
    assert runs[1].error.startswith("Failure # 1 (occurred at ")


def test_without_a_state_file_error_and_done_tell(tmp_path):
    experiment = tmp_path / "exp"
    done = {"done": True, "env_runners": {"episode_return_mean": 1.0}}
    trial_folder(experiment, {"seed": 0}, [{"done": False}], failure=ValueError("boom"))
    trial_folder(experiment, {"seed": 1}, [done], failure=ValueError("first try"))
    trial_folder(experiment, {"seed": 2}, [{"done": False}])
    failed, restarted, going = read_runs([experiment])
    assert (failed.state, failed.reason) == ("failed", "boom")
    assert (restarted.state, restarted.error) == ("finished", None)
    assert "failed and was started again" in restarted.notes[0]
    assert going.state == "running"


def test_a_half_written_state_file_is_noted_and_not_needed(tmp_path):
    path = trial_folder(tmp_path / "exp", {"seed": 0}, [{"done": True}], status="TERMINATED")
    (state_file,) = path.parent.glob("experiment_state-*.json")
    state_file.write_text(state_file.read_text()[:100])
    (run,) = read_runs([path])
    assert run.state == "finished"
    assert f"{state_file} could not be read" in run.notes[0]


def test_no_pickle_of_a_trial_is_opened(tmp_path, monkeypatch):
    path = trial_folder(tmp_path / "exp", {"seed": 0}, [{"done": True}])
    assert (path / "params.pkl").exists()
    (path / "params.pkl").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    monkeypatch.setattr("pickle.loads", None)
    monkeypatch.setattr("pickle.load", None)
    assert read_runs([path])[0].state == "finished"


@pytest.mark.parametrize("cut", ['{"iteration": 3, "env_run', '{"iteration"', "{", '{"iteration": 3, "x": "ü'[:-1]])
def test_the_complete_lines_of_a_killed_run_are_used(tmp_path, cut):
    path = run_folder(tmp_path, {}, [{}, {}])
    with (path / "progress.jsonl").open("a") as file:
        file.write(cut)
    (run,) = read_runs([path])
    assert sorted(run.rows) == [1, 2]
    assert run.notes == (
        f"{path}/progress.jsonl: the last line is cut off and left out; complete before it: 2 iterations.",
    )


def test_the_same_for_a_trial_and_for_samples(tmp_path):
    trial = trial_folder(tmp_path / "exp", {}, [{}, {}])
    own = run_folder(tmp_path / "own", {}, samples=[sample(), sample()])
    for file in (trial / "result.json", own / "samples.jsonl"):
        content = file.read_bytes()
        file.write_bytes(content[:-20])
    cut, samples_cut = read_runs([trial, own])
    assert sorted(cut.rows) == [1]
    assert "cut off and left out; complete before it: 1 iteration." in cut.notes[0]
    assert len(samples_cut.samples) == 1
    assert (
        "samples.jsonl: the last line is cut off and left out; complete before it: 1 response." in samples_cut.notes[0]
    )


def test_iterations_recorded_again_after_a_resume_count_once(tmp_path):
    path = run_folder(tmp_path, {}, [{REWARD: 0.1}, {REWARD: 0.2}])
    with (path / "progress.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 2.0, REWARD: 0.9}) + "\n")
    (run,) = read_runs([path])
    assert run.values(REWARD) == {1: 0.1, 2: 0.9}
    assert "recorded again after a resume: 1 iteration; the later" in run.notes[0]


def test_a_folder_without_configuration_is_read_with_a_note(tmp_path):
    path = run_folder(tmp_path)
    (run,) = read_runs([path])
    assert run.config is None
    assert "has no config.json: its options are unknown" in run.notes[0]


DAMAGES = {
    "a line in the middle": (
        lambda path: (path / "progress.jsonl").write_text('{"iteration": 1}\n{"iterat\n{"iteration": 3}\n'),
        r"progress\.jsonl, line 2 of 3 is damaged \(.*\)\. Only the last line of a run that was killed",
    ),
    "a list in the middle": (
        lambda path: (path / "progress.jsonl").write_text('[1]\n{"iteration": 3}\n'),
        r"progress\.jsonl, line 1 of 2 is damaged \(expected an object in braces, got list\)",
    ),
    "a row without its iteration": (
        lambda path: (path / "progress.jsonl").write_text('{"loss": 1.0}\n'),
        r'progress\.jsonl, line 1: "iteration" is missing; expected names of metrics with numbers',
    ),
    "a row with text": (
        lambda path: (path / "progress.jsonl").write_text('{"iteration": 1, "name": "x"}\n'),
        r"progress\.jsonl, line 1: 'name' is no number",
    ),
    "a later version": (
        lambda path: edit_json(path / "config.json", format_version=2),
        r"config\.json was written by a later version of rlhf-algos: its format_version is 2, this one reads up to 1",
    ),
    "no version": (
        lambda path: edit_json(path / "config.json", format_version=None),
        r'config\.json: "format_version" must be a whole number from 1 on, got None',
    ),
    "somebody else's configuration": (
        lambda path: edit_json(path / "config.json", format="other"),
        r'config\.json is not the configuration of a run folder: expected "format": "rlhf_algos\.RunFolder", got \'ot',
    ),
    "a cut configuration": (
        lambda path: (path / "config.json").write_text('{"format": "rlhf_alg'),
        r"config\.json is not JSON \(.*\); expected one object in braces\. Was it cut off\?",
    ),
    "an unknown state": (
        lambda path: (path / "status.json").write_text('{"state": "dead"}'),
        r'status\.json: expected "state" \(one of running, finished, interrupted, failed\)',
    ),
    "a sample whose lists differ": (
        lambda path: (path / "samples.jsonl").write_text(json.dumps({"iteration": 1} | sample(q=[-1.0])) + "\n{}\n"),
        r"samples\.jsonl, line 1: 2 tokens, but 1 rollout_logprobs",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_an_error_that_names_the_file(tmp_path, damage):
    path = run_folder(tmp_path / "sweep", {})
    run_folder(tmp_path / "sweep", {"seed": 1})
    do, message = DAMAGES[damage]
    do(path)
    with pytest.raises(ValueError, match=message) as error:
        read_runs([tmp_path / "sweep"])
    assert str(path) in str(error.value)


def test_a_result_file_that_is_not_tunes_is_refused(tmp_path):
    (tmp_path / "result.json").write_text('{"accuracy": 1}\n')
    with pytest.raises(ValueError, match=r"result\.json, line 1 is no result of a Ray Tune trial.*got None"):
        read_runs([tmp_path])


def test_a_path_without_runs_is_refused_and_says_what_was_expected(tmp_path):
    expected = r"expected a run folder \(progress.jsonl and a config.json .*\), a trial of Ray Tune .* or a folder that"
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/none does not exist; {expected}"):
        read_runs([tmp_path / "none"])
    with pytest.raises(ValueError, match=rf"{tmp_path} holds no run: it is empty; {expected}"):
        read_runs([tmp_path])
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe"}')
    with pytest.raises(ValueError, match=rf"holds no run: it holds config.json, model.safetensors; {expected}"):
        read_runs([tmp_path])
    with pytest.raises(ValueError, match=rf"config.json is a file; {expected}"):
        read_runs([tmp_path / "config.json"])
    with pytest.raises(ValueError, match="No folder to report on was given"):
        read_runs([])


def test_runs_without_any_iteration_are_refused_unless_one_failed(tmp_path):
    run_folder(tmp_path / "a", {}, [], state="running")
    with pytest.raises(ValueError, match="none of the 1 runs has a complete iteration yet"):
        read_runs([tmp_path])
    run_folder(tmp_path / "b", {}, [], state="failed", error="boom")
    assert [run.state for run in read_runs([tmp_path])] == ["running", "failed"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ValueError: boom", "ValueError: boom"),
        ("The learner died.\nLook at its log.", "The learner died."),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("Failure # 1 (occurred at 2026)\nray::GRPO.train()\nRuntimeError: x\n", "RuntimeError: x"),
        (None, "no reason was recorded"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(tmp_path, error, reason):
    path = run_folder(tmp_path, {}, state="failed", error=error)
    assert read_runs([path])[0].reason == reason
