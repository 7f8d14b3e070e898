"""The command line: `rlhf-algos <command>` or `python -m rlhf_algos <command>`.

What a command works with, and with it Ray and torch, is imported only when the command runs.
"""

import argparse
from collections.abc import Sequence

from rlhf_algos import __version__
from rlhf_algos.commands import doctor, options, replay, report, sweep, train


def build_parser() -> argparse.ArgumentParser:
    """The parser; each command stores the function that runs it as `command`."""
    parser = argparse.ArgumentParser(
        prog="rlhf-algos",
        description="Reinforcement learning for language models on RLlib, DeepSpeed and vLLM.",
    )
    parser.add_argument("--version", action="version", version=f"rlhf-algos {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in (train, sweep, replay, report, options, doctor):
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    arguments = build_parser().parse_args(argv)
    status: int = arguments.command(arguments)
    return status
