"""Ray Tune set up for a sweep."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ray import tune

from rlhf_algos.commands.config.grids import dotted
from rlhf_algos.commands.config.sweep_config import SweepConfig
from rlhf_algos.commands.errors import ConfigError
from rlhf_algos.commands.terminal.interrupts import deferred
from rlhf_algos.commands.terminal.sweep_display import ShowProgress
from rlhf_algos.commands.tune.trial_names import TrialFolder, TrialName
from rlhf_algos.runs.values import flatten

LOG = "tune.log"


class StopTrial(tune.Stopper):
    """Ends a trial after its iterations, or as soon as a metric has reached a value; one it lacks has not."""

    def __init__(self, iterations: int, stop: Mapping[str, float]) -> None:
        self._iterations, self._stop = iterations, dict(stop)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Tune's call for every result."""
        numbers = flatten(result)
        reached = any(numbers.get(key, float("-inf")) >= value for key, value in self._stop.items())
        return reached or numbers["training_iteration"] >= self._iterations

    def stop_all(self) -> bool:
        """Never: each trial ends by itself."""
        return False


def check_resources(sweep: SweepConfig) -> None:
    """Raises ConfigError for a trial that asks for more than the cluster has: it would wait without end."""
    algorithm = sweep.run.algorithm_class()
    for choices, run in sweep.trials():
        try:
            algorithm.default_resource_request(run.build())
        except ValueError as error:
            trial = ", ".join(f"{dotted(path)}={value!r}" for path, value in choices.items())
            raise ConfigError(
                f"{run.file.name}: {error}" + (f"\nThis is the trial with {trial}." if trial else "")
            ) from error


def new_tuner(sweep: SweepConfig, space: dict[str, Any], labels: Mapping[str, str], folder: Path) -> tune.Tuner:
    """A Tuner for a new sweep in an existing folder."""
    name = TrialName(labels)
    return tune.Tuner(
        sweep.run.algorithm_class(),
        param_space=space,
        tune_config=tune.TuneConfig(
            max_concurrent_trials=sweep.max_concurrent,
            reuse_actors=True,
            scheduler=sweep.scheduler_object(),
            trial_name_creator=name,
            trial_dirname_creator=TrialFolder(name),
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            stop=StopTrial(sweep.run.iterations, sweep.stop),
            callbacks=[ShowProgress()],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            verbose=0,
        ),
    )


def restored_tuner(sweep: SweepConfig, space: dict[str, Any], folder: Path, *, retry_failed: bool) -> tune.Tuner:
    """A Tuner that goes on with the sweep in a folder; its finished trials stay finished.

    Raises:
        ConfigError: if the folder holds no usable record of a sweep, which Tune would take for a new one.
    """
    records = sorted(folder.glob("experiment_state-*.json"))
    if not records or not (folder / "tuner.pkl").is_file():
        raise ConfigError(
            f"{folder}: no trial of this sweep has been recorded; start it again with {folder / 'sweep.json'}."
        )
    try:
        json.loads(records[-1].read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{records[-1]} is damaged ({error}). It says which trials are finished; remove it to go on from the "
            "record before it, if there is one."
        ) from error
    return tune.Tuner.restore(
        str(folder),
        trainable=sweep.run.algorithm_class(),
        # Classes in the config are left out of Tune's record, and taken from here for trials that have not started.
        param_space=space,
        resume_unfinished=True,
        # Under the same number and in the same folder; `restart_errored` would give it new ones.
        resume_errored=retry_failed,
    )


@contextmanager
def tune_stops_on_interrupt(say: Callable[[str], None]) -> Iterator[None]:
    """The first Ctrl-C has Tune record how things stand and end its trials; the second ends everything at once."""

    def announce() -> None:
        say("Stopping, which ends the trial that is running; press Ctrl-C again to stop at once.")
        # Tune ends a run on this signal as it would on its own SIGINT handler, which says so in its log only.
        os.kill(os.getpid(), signal.SIGUSR1)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Until Tune puts its own handler here, a signal must not kill this process.
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with deferred(announce):
            yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def tune_logs_to(folder: Path) -> Iterator[None]:
    """Tune's own messages, tracebacks of failed trials among them, go to a file while this lasts."""
    logger = logging.getLogger("ray.tune")
    handler = logging.FileHandler(folder / LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
        handler.close()
