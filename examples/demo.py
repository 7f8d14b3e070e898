"""GRPO teaches the bundled mixture-of-experts model to add, on a CPU, in a few minutes.

    python examples/demo.py                    # 40 iterations
    python examples/demo.py --iterations 10    # a shorter look

It is `rlhf-algos train examples/configs/addition_grpo.yaml` with fewer held-out problems and a learning rate that falls
to 0 over the run, however long that is. It ends with the held-out accuracy before and after, the trained model, a plot
of reward and mismatch, and a run folder, of which `rlhf-algos report` makes a page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlhf_algos.cli import main as rlhf_algos

CONFIG = Path(__file__).parent / "configs" / "addition_grpo.yaml"
RESPONSES_PER_ITERATION = 64 * 8


def settings(iterations: int, seed: int) -> list[str]:
    """What the demo changes in the configuration file, as `--set` takes it."""
    return [
        "name=demo",
        f"training.lr={[[0, 3e-4], [RESPONSES_PER_ITERATION * iterations, 0.0]]}",
        "evaluation.evaluation_duration=500",
        f"debugging.seed={seed}",
    ]


def main() -> int:
    """Trains, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", default="runs", help="where the run folder is made")
    arguments = parser.parse_args()
    command = ["train", str(CONFIG), "--runs", arguments.runs, "--iterations", str(arguments.iterations)]
    for setting in settings(arguments.iterations, arguments.seed):
        command += ["--set", setting]
    return rlhf_algos(command)


if __name__ == "__main__":
    sys.exit(main())
