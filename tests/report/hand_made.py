"""Run folders and trial folders made by hand."""

import json
from pathlib import Path
from types import SimpleNamespace

from rlhf_algos.runs import RunFolder

LEARNER = "learners/default_policy/"
REWARD = "env_runners/episode_return_mean"
SAMPLED = "evaluation/env_runners/episode_return_mean"
GREEDY = "evaluation/env_runners/greedy_return_mean"
IS_HELD_OUT = "evaluation/env_runners/held_out"
DIFFERENCE = f"{LEARNER}train_rollout_logprob_abs_diff"


def nested(flat):
    """{"a/b": 1} as {"a": {"b": 1}}."""
    result = {}
    for key, value in flat.items():
        place = result
        *parents, last = key.split("/")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return result


def run_folder(parent, config=None, rows=({},), *, name="run", state=None, error=None, samples=()):
    """A folder as a run leaves it; `rows` are flat metrics of iterations 1, 2, ..., evaluated on held-out problems."""
    folder = RunFolder(parent, name)
    if config is not None:
        folder.write_config({"algorithm": "GRPO"} | config)
    for iteration, row in enumerate(rows, 1):
        held_out = {IS_HELD_OUT: 1.0} if SAMPLED in row else {}
        folder.append(iteration, nested({REWARD: 0.5} | held_out | row))
    if samples:
        folder.append_samples(len(rows), samples)
    if state:
        folder.set_status(state, error)
    return folder.path


def sample(prompt="1+1=", tokens=("2", "<eos>"), q=(-0.1, -0.2), p0=(-0.1, -0.7), reward=1.0):
    return {"prompt": prompt, "reward": reward, "tokens": tokens, "rollout_logprobs": q, "old_logprobs": p0}


def trial_folder(experiment, config, results, *, failure=None, status=None, trainable="GRPO"):
    """A trial's folder, written by Tune's own classes; no Ray is started."""
    from ray.tune.experiment.trial import Trial
    from ray.tune.logger import JsonLoggerCallback

    number = len(list(experiment.iterdir())) if experiment.exists() else 0
    trial = Trial(trainable, stub=True, config=config, trial_id=f"ab12_{number:05d}")
    path = experiment / f"{trainable}_ab12_{number:05d}"
    # What a trial asks of its storage here is where its folder is.
    trial.storage = SimpleNamespace(trial_driver_staging_path=str(path), trial_fs_path=None)
    trial.relative_logdir = path.name
    path.mkdir(parents=True)
    logger = JsonLoggerCallback()
    logger._restore_from_remote = lambda *_: None
    logger.log_trial_start(trial)
    for iteration, result in enumerate(results, 1):
        logger.log_trial_result(iteration, trial, {"training_iteration": iteration, "config": config} | result)
    logger.log_trial_end(trial)
    if failure is not None:
        trial.handle_error(failure)
    if status is not None:
        trial.storage = None
        trial.set_status(status)
        state_file = experiment / "experiment_state-2026-11-30_12-00-00.json"
        trials = json.loads(state_file.read_text())["trial_data"] if state_file.exists() else []
        state_file.write_text(json.dumps({"trial_data": [*trials, trial.get_json_state()]}))
    return path


def only(path: Path):
    """The one entry of a folder."""
    (entry,) = path.iterdir()
    return entry
