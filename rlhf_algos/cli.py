"""The command line: `rlhf-algos <command>` or `python -m rlhf_algos <command>`.

Each command's own module, and with it Ray and torch, is imported only when the command runs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_algos import __version__
from rlhf_algos.commands.replay import add_replay
from rlhf_algos.doctor import run_doctor


def build_parser() -> argparse.ArgumentParser:
    """The parser; each command stores the function that runs it as `command`."""
    parser = argparse.ArgumentParser(
        prog="rlhf-algos",
        description="Reinforcement learning for language models on RLlib, DeepSpeed and vLLM.",
    )
    parser.add_argument("--version", action="version", version=f"rlhf-algos {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (_add_train, _add_sweep, add_replay, _add_report, _add_doctor):
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = build_parser().parse_args(argv)
    status: int = arguments.command(arguments)
    return status


# ---- train -----------------------------------------------------------------------------------------------------------


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="one run from a configuration file to a run folder",
        description="Train as a YAML or JSON file says. Writes a run folder: exact configuration, progress, state, "
        "trained model, plot. Ctrl-C stops after the current iteration, a second one at once. Exit status: 0, "
        "1 the run failed, 2 the configuration is wrong, 130 interrupted.",
    )
    train.add_argument("config", metavar="CONFIG", type=Path, help="configuration, .yaml or .json")
    _add_run_options(train)
    train.set_defaults(command=_run_train)


def _run_train(arguments: argparse.Namespace) -> int:
    from rlhf_algos.commands.train import train

    return train(
        arguments.config,
        overrides=arguments.overrides,
        runs=arguments.runs,
        iterations=arguments.iterations,
        quiet=arguments.quiet,
        ray_address=arguments.ray_address,
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """What `train` and `sweep` have in common."""
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a value of the file, for example --set training.lr=1e-3; may be given several times",
    )
    parser.add_argument(
        "--runs", metavar="DIR", type=Path, default=Path("runs"), help="where the folder is made (runs)"
    )
    parser.add_argument("--iterations", metavar="N", type=_positive, help="in place of the file's")
    parser.add_argument("--quiet", action="store_true", help="print the folder's path only")
    parser.add_argument(
        "--ray-address", metavar="ADDRESS", help="a running Ray cluster (or auto), in place of one on this machine"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


# ---- sweep -----------------------------------------------------------------------------------------------------------


def _add_sweep(commands: Any) -> None:
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
    _add_run_options(sweep)
    sweep.set_defaults(command=_run_sweep, parser=sweep)


def _run_sweep(arguments: argparse.Namespace) -> int:
    if (arguments.config is None) == (arguments.resume is None):
        arguments.parser.error("give either CONFIG or --resume DIR")
    if arguments.resume is None and arguments.retry_failed:
        arguments.parser.error("--retry-failed belongs to --resume DIR")
    if arguments.resume is not None and (arguments.overrides or arguments.iterations):
        arguments.parser.error(
            "--resume continues with the sweep's own configuration; --set and --iterations change it"
        )
    from rlhf_algos.commands.sweep import resume_sweep, start_sweep

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


# ---- report ----------------------------------------------------------------------------------------------------------


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="one page on runs and sweeps",
        description="Write a self-contained HTML page and pictures on run folders and sweeps. Exit status 1 when a "
        "folder can't be read.",
    )
    report.add_argument("paths", metavar="RUN_OR_SWEEP", type=Path, nargs="+")
    report.add_argument(
        "--output",
        metavar="PATH",
        type=Path,
        help="the page if it ends in .html, else a folder for it (the folder reported on, or ./report for several)",
    )
    report.set_defaults(command=_run_report)


def _run_report(arguments: argparse.Namespace) -> int:
    from rlhf_algos.report import write_report

    output = arguments.output or (arguments.paths[0] if len(arguments.paths) == 1 else Path("report"))
    try:
        report = write_report(arguments.paths, output)
    except (ValueError, OSError) as error:
        print(f"rlhf-algos report: {error}", file=sys.stderr)
        return 1
    for note in report.notes:
        print(f"note: {note}")
    print(report.page)
    return 0


# ---- doctor ----------------------------------------------------------------------------------------------------------


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check this environment and say what to do about what is missing or wrong",
        description="Check this environment, a line per check. Exit status 1 when something needed is wrong.",
    )
    doctor.set_defaults(command=lambda arguments: run_doctor())
