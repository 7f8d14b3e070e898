"""The command line: `rlhf-algos <command>` or `python -m rlhf_algos <command>`."""

import argparse
from collections.abc import Sequence

from rlhf_algos import __version__
from rlhf_algos.doctor import run_doctor


def build_parser() -> argparse.ArgumentParser:
    """The parser; each command stores the function that runs it as `command`."""
    parser = argparse.ArgumentParser(
        prog="rlhf-algos",
        description="Reinforcement learning for language models on RLlib, DeepSpeed and vLLM.",
    )
    parser.add_argument("--version", action="version", version=f"rlhf-algos {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    doctor = commands.add_parser(
        "doctor",
        help="check this environment and say what to do about what is missing or wrong",
        description="Check this environment, a line per check. Exit status 1 when something needed is wrong.",
    )
    doctor.set_defaults(command=lambda arguments: run_doctor())
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = build_parser().parse_args(argv)
    status: int = arguments.command(arguments)
    return status
