"""Arguments that `train` and `sweep` have in common."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_run_options(parser: argparse.ArgumentParser) -> None:
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
