"""`rlhf-algos report`: one page on runs and sweeps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
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
    report.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the page and prints its path; exit status 1 if a folder can't be read."""
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
