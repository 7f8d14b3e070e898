"""`rlhf-algos doctor`: what is missing or wrong in this environment."""

from __future__ import annotations

import argparse

from rlhf_algos.doctor import run_doctor


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="check this environment and say what to do about what is missing or wrong",
        description="Check this environment, a line per check. Exit status 1 when something needed is wrong.",
    )
    doctor.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; exit status 1 if something needed is wrong."""
    return run_doctor()
