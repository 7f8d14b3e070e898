"""GRPO teaches the bundled mixture-of-experts model to add, on a CPU, in a few minutes.

    python examples/demo.py                    # 40 iterations
    python examples/demo.py --iterations 10    # a shorter look

Ends with the held-out accuracy before and after, a plot of reward and mismatch, and the trained model.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

# Ray's own processes report to their log files, not between the lines of the progress bar.
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")

import ray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.recipes import addition
from rlhf_algos.local_ray import start_ray
from rlhf_algos.report import RunFolder, plot_training, read_progress

EVALUATE_EVERY = 10


def main() -> None:
    """Trains and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run folder is made")
    arguments = parser.parse_args()

    console = Console()
    folder = RunFolder(arguments.runs, "demo")
    console.print("Starting Ray, one vLLM rollout actor and one DeepSpeed learner (about half a minute) ...")
    started = time.monotonic()
    start_ray(log_to_driver=False, logging_level="error")
    algorithm = addition(
        GRPOConfig(), iterations=arguments.iterations, seed=arguments.seed, evaluation_problems=500
    ).build_algo()
    try:
        console.print(f"Ready after {time.monotonic() - started:.0f} s.")
        before = algorithm.evaluate()["env_runners"]
        folder.append(0, {"evaluation": {"env_runners": before}})
        console.print(f"Held-out accuracy before training: {accuracy(before)}")
        after = before
        columns = (
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("train", total=arguments.iterations, status="")
            for iteration in range(1, arguments.iterations + 1):
                result = algorithm.train()
                if iteration % EVALUATE_EVERY == 0 or iteration == arguments.iterations:
                    after = algorithm.evaluate()["env_runners"]
                    result["evaluation"] = {"env_runners": after}
                    progress.console.print(f"iteration {iteration:3d}: held-out {accuracy(after)}")
                folder.append(iteration, result)
                learner = result["learners"]["default_policy"]
                status = (
                    f"reward {result['env_runners']['episode_return_mean']:.3f}   "
                    f"mean |log p - log q| {learner['train_rollout_logprob_abs_diff']:.1e}"
                )
                progress.update(task, advance=1, status=status)
        model = algorithm.save_pretrained(folder.path / "model")
    finally:
        algorithm.stop()
        ray.shutdown()
    plot = plot_training(
        read_progress(folder.path),
        folder.path / "reward_and_mismatch.png",
        title="GRPO on two-digit addition",
    )
    console.print(f"\nHeld-out accuracy before: {accuracy(before)}")
    console.print(f"Held-out accuracy after:  {accuracy(after)}")
    console.print(f"Run folder:    {folder.path}", soft_wrap=True)
    console.print(f"Trained model: {model}", soft_wrap=True)
    console.print(f"Plot:          {plot}", soft_wrap=True)
    console.print(f"Took {time.monotonic() - started:.0f} s.")


def accuracy(results: dict[str, float]) -> str:
    """Sampled and greedy accuracy as text."""
    return f"sampled {results['episode_return_mean']:.3f}, greedy {results['greedy_return_mean']:.3f}"


if __name__ == "__main__":
    main()
