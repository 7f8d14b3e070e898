"""Does it learn? Seeds, 60 iterations each, on the held-out problems of two-digit addition.

    python benchmarks/learning.py --json docs/data/learning.json --plot docs/images/learning.png
    python benchmarks/learning.py --algorithm reinforce_sc --json docs/data/learning_reinforce_sc.json

Prints for each seed the held-out accuracy of sampled and of greedy answers before and after, and the time. Each seed
leaves a run folder, of which `rlhf-algos report` makes a page.
Exit status 1 if a seed's sampled accuracy rises by less than 0.15, its greedy accuracy falls, or it takes more than
five minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from matplotlib.figure import Figure

from rlhf_algos.algorithms import ALGORITHMS, algorithm_class
from rlhf_algos.algorithms.recipes import addition
from rlhf_algos.local_ray import start_ray
from rlhf_algos.metrics import EVALUATION, LEARNER, ROLLOUT
from rlhf_algos.runs import RunFolder, record_run, recorded_state

LEAST_RISE = 0.15
MOST_SECONDS = 300


def run_seed(algorithm_name: str, seed: int, iterations: int, evaluate_every: int, runs: Path) -> dict[str, Any]:
    """Trains one seed, into a run folder; returns its curve."""
    config = addition(algorithm_class(algorithm_name).get_default_config(), iterations=iterations, seed=seed)
    folder = RunFolder(runs, f"{algorithm_name}-seed-{seed}")
    folder.write_config({"algorithm": algorithm_name} | config.to_dict())
    algorithm = config.build_algo()
    started = time.monotonic()
    curve: list[dict[str, float]] = []
    rewards: list[float] = []
    mismatch: list[float] = []

    def tell(iteration: int, row: Mapping[str, float]) -> None:
        if iteration:
            rewards.append(row[f"{ROLLOUT}/episode_return_mean"])
            mismatch.append(row[f"{LEARNER}/train_rollout_logprob_abs_diff"])
        if f"{EVALUATION}/episode_return_mean" not in row:
            return
        if row[f"{EVALUATION}/held_out"] != 1.0:
            raise RuntimeError("The evaluation played a split that is not held out.")
        point = {
            "iteration": iteration,
            "sampled": row[f"{EVALUATION}/episode_return_mean"],
            "greedy": row[f"{EVALUATION}/greedy_return_mean"],
            "seconds": time.monotonic() - started,
        }
        curve.append(point)
        print(f"seed {seed}  " + "  ".join(f"{key} {value:.3f}" for key, value in point.items()), flush=True)

    try:
        with recorded_state(folder):
            record_run(algorithm, iterations, folder, evaluate_every=evaluate_every, tell=tell)
    finally:
        algorithm.stop()
    return {"seed": seed, "curve": curve, "rewards": rewards, "train_rollout_logprob_abs_diff": mismatch}


def verdict(run: dict[str, Any]) -> dict[str, Any]:
    """The bar's numbers of one seed."""
    first, last = run["curve"][0], run["curve"][-1]
    rise, greedy = last["sampled"] - first["sampled"], last["greedy"] - first["greedy"]
    passed = rise >= LEAST_RISE and greedy >= 0 and last["seconds"] <= MOST_SECONDS
    return {"seed": run["seed"], "rise": rise, "greedy_change": greedy, "seconds": last["seconds"], "passed": passed}


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Accuracy over iterations, one line per seed."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, run in enumerate(runs):
        x = [row["iteration"] for row in run["curve"]]
        for name, style in (("sampled", "-o"), ("greedy", "--s")):
            y = [row[name] for row in run["curve"]]
            axes.plot(x, y, style, color=f"C{number}", markersize=4, label=f"{name}, seed {run['seed']}")
    axes.set_xlabel("iteration (512 responses each)")
    axes.set_ylabel("held-out accuracy")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(ncols=len(runs), fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Runs all seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="grpo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders are made")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    start_ray(log_to_driver=False, logging_level="error")
    try:
        runs = [
            run_seed(arguments.algorithm, seed, arguments.iterations, arguments.evaluate_every, arguments.runs)
            for seed in arguments.seeds
        ]
    finally:
        ray.shutdown()
    verdicts = [verdict(run) for run in runs]
    for row in verdicts:
        print(
            f"seed {row['seed']}: sampled {row['rise']:+.3f}, greedy {row['greedy_change']:+.3f}, "
            f"{row['seconds']:.0f} s: {'PASS' if row['passed'] else 'MISS'}"
        )
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
        arguments.json.write_text(
            json.dumps(
                {"machine": machine, "algorithm": arguments.algorithm, "verdicts": verdicts, "runs": runs}, indent=1
            )
        )
    if arguments.plot:
        draw(runs, arguments.plot)
    return 0 if all(row["passed"] for row in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
