"""`rlhf-algos sweep`: one trial per combination of values, through Ray Tune."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlhf_algos.commands import exit_codes
from rlhf_algos.commands.errors import ConfigError, message_of, write_traceback
from rlhf_algos.commands.ray_session import ray_session, set_environment
from rlhf_algos.commands.run_options import add_run_options
from rlhf_algos.runs import RunFolder

if TYPE_CHECKING:
    from rlhf_algos.commands.config.sweep_config import SweepConfig

CONFIG = "sweep.json"
ERROR = "error.txt"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    sweep = commands.add_parser(
        "sweep",
        help="one run per combination of values",
        description="Run every combination of the values that a file gives as {grid: [...]}, one after another with "
        "Ray Tune, on the same engine where it can be. Exit status: 0, 1 a trial failed, 2 the configuration is "
        "wrong, 130 interrupted; --resume DIR then runs what is missing.",
    )
    sweep.add_argument("config", metavar="CONFIG", type=Path, nargs="?", help="configuration, .yaml or .json")
    sweep.add_argument("--resume", metavar="DIR", type=Path, help="continue the sweep in this folder")
    sweep.add_argument("--retry-failed", action="store_true", help="with --resume: run failed trials again")
    add_run_options(sweep)
    sweep.set_defaults(command=run, parser=sweep)


def run(arguments: argparse.Namespace) -> int:
    """Starts or resumes a sweep; the exit status of `start_sweep`."""
    if (arguments.config is None) == (arguments.resume is None):
        arguments.parser.error("give either CONFIG or --resume DIR")
    if arguments.resume is None and arguments.retry_failed:
        arguments.parser.error("--retry-failed belongs to --resume DIR")
    if arguments.resume is not None and (arguments.overrides or arguments.iterations):
        arguments.parser.error(
            "--resume continues with the sweep's own configuration; --set and --iterations change it"
        )
    shared = {"quiet": arguments.quiet, "ray_address": arguments.ray_address}
    if arguments.resume is not None:
        return resume_sweep(arguments.resume, retry_failed=arguments.retry_failed, **shared)
    return start_sweep(
        arguments.config,
        overrides=arguments.overrides,
        runs=arguments.runs,
        iterations=arguments.iterations,
        **shared,
    )


def start_sweep(
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    runs: str | Path = "runs",
    iterations: int | None = None,
    quiet: bool = False,
    ray_address: str | None = None,
) -> int:
    """Runs every trial, in a new folder under `runs`.

    Args:
        config: path of the configuration file.
        overrides: `section.key=value` each.
        runs: where the folder is made.
        iterations: of each trial, takes the place of the file's.
        quiet: print the folder's path only.
        ray_address: of a running cluster, in place of a Ray of one's own.

    Returns:
        The exit status: 0, 1 if a trial failed, 2 if the configuration is wrong, 130 if it was interrupted.
    """

    def make_folder(sweep: SweepConfig) -> Path:
        folder = RunFolder(runs, sweep.run.name).path
        sweep.write(folder / CONFIG)
        return folder

    def make_tuner(sweep: SweepConfig, space: dict[str, Any], labels: dict[str, str], folder: Path) -> Any:
        from rlhf_algos.commands.tune.tuner import new_tuner

        return new_tuner(sweep, space, labels, folder)

    def read() -> SweepConfig:
        from rlhf_algos.commands.config.sweep_config import read_sweep_config

        return read_sweep_config(config, overrides, iterations=iterations)

    return _sweep(read, make_folder, make_tuner, quiet=quiet, ray_address=ray_address)


def resume_sweep(
    folder: Path, *, retry_failed: bool = False, quiet: bool = False, ray_address: str | None = None
) -> int:
    """Runs what is missing of the sweep in a folder: finished trials never again, an interrupted one from its start.

    Args:
        folder: of the sweep.
        retry_failed: run failed trials again too.
        quiet: print the folder's path only.
        ray_address: of a running cluster, in place of a Ray of one's own.

    Returns:
        The exit status, as of `start_sweep`.
    """
    folder = Path(folder).absolute()

    def read() -> SweepConfig:
        from rlhf_algos.commands.config.sweep_config import read_sweep_config

        if not (folder / CONFIG).is_file():
            raise ConfigError(f"{folder} is not the folder of a sweep: it has no {CONFIG}.")
        return read_sweep_config(folder / CONFIG)

    def make_tuner(sweep: SweepConfig, space: dict[str, Any], labels: dict[str, str], folder: Path) -> Any:
        from rlhf_algos.commands.tune.tuner import restored_tuner

        return restored_tuner(sweep, space, folder, retry_failed=retry_failed)

    return _sweep(read, lambda sweep: folder, make_tuner, quiet=quiet, ray_address=ray_address)


def _sweep(
    read: Callable[[], SweepConfig],
    make_folder: Callable[[SweepConfig], Path],
    make_tuner: Callable[[SweepConfig, dict[str, Any], dict[str, str], Path], Any],
    *,
    quiet: bool,
    ray_address: str | None,
) -> int:
    set_environment()
    folder = None
    try:
        sweep = read()
        sweep.validate()
        sweep.scheduler_object()
        space, labels = sweep.param_space()
        with ray_session(ray_address):
            from rlhf_algos.commands.tune.tuner import check_resources

            check_resources(sweep)
            folder = make_folder(sweep)
            return _fit(sweep, make_tuner(sweep, space, labels, folder), labels, folder, quiet=quiet)
    except ConfigError as error:
        print(f"rlhf-algos sweep: {error}", file=sys.stderr)
        return exit_codes.WRONG_CONFIGURATION
    except KeyboardInterrupt:
        if folder is not None:
            _say_how_to_resume(folder)
        return exit_codes.INTERRUPTED
    except Exception as error:
        # Of Tune or Ray themselves; a trial's own error is among the results.
        if folder is None:
            raise
        file = write_traceback(error, folder / ERROR)
        print(f"rlhf-algos sweep: {message_of(error)}\nThe whole error: {file}", file=sys.stderr)
        _say_how_to_resume(folder)
        return exit_codes.FAILED


def _fit(sweep: SweepConfig, tuner: Any, labels: dict[str, str], folder: Path, *, quiet: bool) -> int:
    from rlhf_algos.commands.terminal.sweep_display import ShowProgress, sweep_display
    from rlhf_algos.commands.tune.sweep_results import table_of, trial_results
    from rlhf_algos.commands.tune.tuner import tune_logs_to, tune_stops_on_interrupt

    total = len(sweep.trials())
    display = sweep_display(Console(highlight=False), total, sweep.run.iterations, quiet=quiet)
    display.say(f"{total} trials of {sweep.run.iterations} iterations in {folder}")
    for note in _notes(sweep):
        display.say(note)
    ShowProgress.display = display
    with tune_logs_to(folder), display, tune_stops_on_interrupt(display.say):
        results = tuner.fit()
    trials = trial_results(results, labels)
    failed = [trial for trial in trials if trial.state == "failed"]
    finished = [trial for trial in trials if trial.state == "finished"]
    if quiet:
        print(folder)
    else:
        display.say(f"\n{table_of(trials)}\n")
        for key in _never_measured(sweep, results):
            display.say(f"sweep.stop: no trial measured {key}, so it stopped none.")
    for trial in failed:
        print(f"failed: {trial.name}: {trial.error}\n  The whole error: {trial.folder / ERROR}", file=sys.stderr)
    if len(failed) + len(finished) < total:
        _say_how_to_resume(folder)
        return exit_codes.INTERRUPTED
    display.say(f"Report:  rlhf-algos report {folder}")
    return exit_codes.FAILED if failed else exit_codes.OK


def _notes(sweep: SweepConfig) -> list[str]:
    run = sweep.run
    notes = [sweep.note] if sweep.note else []
    if run.evaluate_every and run.iterations % run.evaluate_every:
        last = run.iterations // run.evaluate_every * run.evaluate_every
        notes.append(
            f"evaluate_every={run.evaluate_every} does not divide {run.iterations} iterations: "
            f"{f'the last evaluation is after {last}' if last else 'nothing is evaluated'}."
        )
    return notes


def _never_measured(sweep: SweepConfig, results: Any) -> list[str]:
    frames = [frame for result in results if (frame := result.metrics_dataframe) is not None]
    return [key for key in sweep.stop if not any(key in frame.columns for frame in frames)] if frames else []


def _say_how_to_resume(folder: Path) -> None:
    print(f"Interrupted. Run what is missing with: rlhf-algos sweep --resume {folder}", file=sys.stderr)
