"""Does it learn? Seeds, 60 iterations each, on the held-out problems of two-digit addition.

    python benchmarks/learning.py --json docs/data/learning.json --plot docs/images/learning.png
    python benchmarks/learning.py --algorithm reinforce_sc --json docs/data/learning_reinforce_sc.json

Prints for each seed the held-out accuracy of sampled and of greedy answers before and after, and the time.
Exit status 1 if a seed's sampled accuracy rises by less than 0.15, its greedy accuracy falls, or it takes more than
five minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import ray
from matplotlib.figure import Figure

from rlhf_algos.algorithms import ALGORITHMS, algorithm_class
from rlhf_algos.algorithms.recipes import addition
from rlhf_algos.local_ray import start_ray

LEAST_RISE = 0.15
MOST_SECONDS = 300


def run_seed(algorithm_name: str, seed: int, iterations: int, evaluate_every: int) -> dict[str, Any]:
    """Trains one seed; returns its curve."""
    config = algorithm_class(algorithm_name).get_default_config()
    algorithm = addition(config, iterations=iterations, seed=seed).build_algo()
    started = time.monotonic()
    curve: list[dict[str, float]] = []

    def evaluate(iteration: int) -> None:
        result = algorithm.evaluate()["env_runners"]
        if result["held_out"] != 1.0:
            raise RuntimeError(f"The evaluation played split {result['split']!r}, which is not held out.")
        row = {
            "iteration": iteration,
            "sampled": result["episode_return_mean"],
            "greedy": result["greedy_return_mean"],
            "seconds": time.monotonic() - started,
        }
        curve.append(row)
        print(f"seed {seed}  " + "  ".join(f"{key} {value:.3f}" for key, value in row.items()), flush=True)

    try:
        evaluate(0)
        rewards, mismatch = [], []
        for iteration in range(1, iterations + 1):
            result = algorithm.train()
            rewards.append(float(result["env_runners"]["episode_return_mean"]))
            mismatch.append(result["learners"]["default_policy"]["train_rollout_logprob_abs_diff"])
            if iteration % evaluate_every == 0:
                evaluate(iteration)
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
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    start_ray(log_to_driver=False, logging_level="error")
    try:
        runs = [
            run_seed(arguments.algorithm, seed, arguments.iterations, arguments.evaluate_every)
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
