"""`rlhf-algos train`: one run from a configuration file to a run folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlhf_algos.commands import exit_codes
from rlhf_algos.commands.errors import ConfigError, message_of, write_traceback
from rlhf_algos.commands.ray_session import ray_session, set_environment
from rlhf_algos.commands.run_options import add_run_options
from rlhf_algos.commands.terminal.interrupts import deferred
from rlhf_algos.commands.terminal.measures import EVALUATED, GREEDY, REWARD, heading_for, text_of
from rlhf_algos.commands.terminal.train_display import TrainDisplay, train_display
from rlhf_algos.runs import RunFolder, read_progress, record_run, recorded_state
from rlhf_algos.runs.run_folder import PROGRESS

if TYPE_CHECKING:
    from rlhf_algos.commands.config.run_config import RunConfig

MODEL = "model"
PLOT = "reward_and_mismatch.png"
ERROR = "error.txt"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    train = commands.add_parser(
        "train",
        help="one run from a configuration file to a run folder",
        description="Train as a YAML or JSON file says. Writes a run folder: exact configuration, progress, state, "
        "trained model, plot. Ctrl-C stops after the current iteration, a second one at once. Exit status: 0, "
        "1 the run failed, 2 the configuration is wrong, 130 interrupted.",
    )
    train.add_argument("config", metavar="CONFIG", type=Path, help="configuration, .yaml or .json")
    add_run_options(train)
    train.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains; the exit status of `train`."""
    return train(
        arguments.config,
        overrides=arguments.overrides,
        runs=arguments.runs,
        iterations=arguments.iterations,
        quiet=arguments.quiet,
        ray_address=arguments.ray_address,
    )


def train(
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    runs: str | Path = "runs",
    iterations: int | None = None,
    quiet: bool = False,
    ray_address: str | None = None,
) -> int:
    """Trains, and writes everything into a new folder under `runs`.

    Args:
        config: path of the configuration file.
        overrides: `section.key=value` each.
        runs: where the run folder is made.
        iterations: takes the place of the file's.
        quiet: print the run folder's path only.
        ray_address: of a running cluster, in place of a Ray of one's own.

    Returns:
        The exit status: 0, 1 if the run failed, 2 if the configuration is wrong, 130 if it was interrupted.
    """
    console = Console(highlight=False)
    set_environment()
    from rlhf_algos.commands.config.run_config import read_run_config, require_no_grids

    try:
        run = read_run_config(config, overrides, iterations=iterations)
        require_no_grids(run)
        algorithm_config = _with_seed(run.build())
        recorded = run.recorded(algorithm_config)
    except ConfigError as error:
        print(f"rlhf-algos train: {error}", file=sys.stderr)
        return exit_codes.WRONG_CONFIGURATION
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    folder = RunFolder(runs, run.name)
    folder.write_config(recorded)
    display = train_display(console, run.iterations, quiet=quiet)
    finished = True
    try:
        with recorded_state(folder, message_of):
            _run(run, algorithm_config, folder, display, ray_address)
    except KeyboardInterrupt:
        finished = False
        display.say("Interrupted.")
    except Exception as error:
        file = write_traceback(error, folder.path / ERROR)
        print(f"rlhf-algos train: the run failed: {message_of(error)}\nThe whole error: {file}", file=sys.stderr)
        return exit_codes.FAILED
    _draw(folder, run)
    _say_what_there_is(folder, display, quiet=quiet)
    return exit_codes.OK if finished else exit_codes.INTERRUPTED


def _with_seed(config: Any) -> Any:
    """A run without a seed draws it here, so that what is recorded repeats the run."""
    from rlhf_algos.algorithms.seeds import with_seed

    return with_seed(config)


def _run(run: RunConfig, config: Any, folder: RunFolder, display: TrainDisplay, ray_address: str | None) -> None:
    """Raises KeyboardInterrupt, once everything is stopped, if the run was stopped before its end."""
    display.say(
        f"Starting {run.algorithm}: Ray, {config.num_env_runners} rollout actor(s) with vLLM, "
        f"{config.num_learners} DeepSpeed learner(s) ..."
    )
    display.say(f"Threads: {config.placement().thread_summary()}.")
    with ray_session(ray_address) as our_ray:
        algorithm = config.build_algo()
        at_once = True
        try:
            interrupted = _train(run, algorithm, folder, display)
            at_once = False
        finally:
            # A second Ctrl-C waits for no actor: ending our own Ray ends them.
            if at_once and our_ray and isinstance(sys.exception(), KeyboardInterrupt):
                algorithm.abandon()
            else:
                algorithm.stop()
    if interrupted:
        raise KeyboardInterrupt


def _train(run: RunConfig, algorithm: Any, folder: RunFolder, display: TrainDisplay) -> bool:
    """Returns whether the run was stopped before its end."""

    def announce() -> None:
        display.say("Stopping after this iteration; press Ctrl-C again to stop at once.")

    with display, deferred(announce) as interrupts:
        record_run(
            algorithm,
            run.iterations,
            folder,
            evaluate_every=run.evaluate_every,
            tell=display.iteration,
            stopped=lambda: interrupts.requested,
        )
        algorithm.save_pretrained(folder.path / MODEL)
    return interrupts.requested


def _draw(folder: RunFolder, run: RunConfig) -> None:
    if not (folder.path / PROGRESS).exists():
        return
    from rlhf_algos.report import plot_training

    rows = read_progress(folder.path)
    if any(REWARD.key in row for row in rows):
        plot_training(rows, folder.path / PLOT, title=run.name)


def _say_what_there_is(folder: RunFolder, display: TrainDisplay, *, quiet: bool) -> None:
    if quiet:
        print(folder.path)
        return
    rows = read_progress(folder.path) if (folder.path / PROGRESS).exists() else []
    evaluated = [row for row in rows if EVALUATED.key in row]
    if evaluated:
        first, last = evaluated[0], evaluated[-1]
        for row in [first] if first is last else [first, last]:
            greedy = f", greedy {text_of(GREEDY, row)}" if GREEDY.key in row else ""
            heading = heading_for(EVALUATED, [row]).capitalize()
            display.say(f"{heading} after {row['iteration']:.0f} iterations: {text_of(EVALUATED, row)}{greedy}")
    for label, name in (("Trained model", MODEL), ("Plot", PLOT)):
        if (folder.path / name).exists():
            display.say(f"{label + ':':15}{folder.path / name}")
    display.say(f"{'Run folder:':15}{folder.path}")
    if rows:
        display.say(f"{'Report:':15}rlhf-algos report {folder.path}")
