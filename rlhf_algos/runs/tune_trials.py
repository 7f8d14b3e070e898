"""Reading the folders of Ray Tune's trials: the JSON in them, never the pickles.

Layout as Ray 2.60 writes it. In a trial's folder `params.json` (configuration), `result.json` (one nested result a
line) and, after a failure, `error.txt`; in the experiment's folder above it `experiment_state-*.json`, which says how
each trial stands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_algos.runs.json_files import read_json_lines, read_json_object
from rlhf_algos.runs.own_runs import repeated_note
from rlhf_algos.runs.run import Run
from rlhf_algos.runs.samples import read_samples
from rlhf_algos.runs.values import flatten

PARAMS = "params.json"
RESULT = "result.json"
ERROR = "error.txt"
_STATE_FILES = "experiment_state-*.json"
# A trial that is paused or waits is continued when the sweep is.
_STATES = {"TERMINATED": "finished", "ERROR": "failed", "RUNNING": "running", "PENDING": "running", "PAUSED": "running"}


def is_trial_folder(folder: Path) -> bool:
    """Whether the folder is meant to be a trial's."""
    return (folder / PARAMS).is_file() or (folder / RESULT).is_file()


def read_trial_folder(folder: Path) -> Run:
    """The run of one trial.

    Raises:
        ValueError: if a file in it is damaged or not Tune's; names the file.
    """
    results, notes = _read_results(folder / RESULT)
    config = read_json_object(folder / PARAMS) if (folder / PARAMS).is_file() else None
    if config is None and results:
        recorded = results[max(results)].get("config")
        config = recorded if isinstance(recorded, dict) else None
    if config is None:
        notes.append(f"{folder} has no {PARAMS}: its options are unknown, and it is not grouped with other runs.")
    config = _with_drawn_seed(config, results)
    trial, state_notes = _experiment_state(folder)
    if config is not None and "trainable_name" in trial:
        config = {"algorithm": trial["trainable_name"]} | config
    error = (folder / ERROR).read_text(errors="replace") if (folder / ERROR).is_file() else None
    state = _state(results, trial.get("status"), error)
    if error is not None and state != "failed":
        notes.append(f"{folder}: failed and was started again (see its {ERROR}).")
        error = None
    samples, sample_notes = read_samples(folder)
    # The configuration is repeated in each result; its numbers are no measurements.
    rows = {i: flatten({key: value for key, value in row.items() if key != "config"}) for i, row in results.items()}
    return Run(folder, config, rows, state, error, samples, (*notes, *state_notes, *sample_notes))


def _with_drawn_seed(config: dict[str, Any] | None, results: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
    """A trial that was given no seed draws one, which only its results have."""
    if config is None or config.get("seed", 0) is not None or not results:
        return config
    recorded = results[max(results)].get("config")
    return config | {"seed": recorded.get("seed")} if isinstance(recorded, dict) else config


def _read_results(file: Path) -> tuple[dict[int, dict[str, Any]], list[str]]:
    if not file.is_file():
        return {}, []
    lines = read_json_lines(file)
    results: dict[int, dict[str, Any]] = {}
    repeated = 0
    for number, result in lines.objects:
        iteration = result.get("training_iteration")
        if not isinstance(iteration, int):
            raise ValueError(
                f'{file}, line {number} is no result of a Ray Tune trial: expected "training_iteration" with a whole '
                f"number, got {iteration!r}."
            )
        repeated += iteration in results
        results[iteration] = result
    return results, lines.cut_note(file, "iteration") + repeated_note(file, repeated)


def _state(results: dict[int, dict[str, Any]], status: Any, error: str | None) -> str:
    if status in _STATES:
        return _STATES[status]
    if results and results[max(results)].get("done") is True:
        return "finished"
    return "failed" if error is not None else "running"


def _experiment_state(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the experiment's newest state file says of this trial; empty if there is none."""
    files = sorted(folder.parent.glob(_STATE_FILES))
    if not files:
        return {}, []
    try:
        for state, _ in json.loads(files[-1].read_bytes())["trial_data"]:
            trial = json.loads(state)
            if trial.get("relative_logdir") == folder.name:
                return trial, []
    except (ValueError, KeyError, TypeError, AttributeError):
        # Tune writes the file in place, so a running sweep can be met halfway.
        return {}, [f"{files[-1]} could not be read; the states of its trials are taken from their own files."]
    return {}, []
