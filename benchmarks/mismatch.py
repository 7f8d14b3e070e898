"""Which correction helps against which mismatch? Every cell on the same prompts, budget and evaluation.

    python benchmarks/mismatch.py run docs/data/mismatch.jsonl      # an hour or more; continues where it was stopped
    python benchmarks/mismatch.py table docs/data/mismatch.jsonl --plot docs/images/mismatch.png

Cells: correctors {none, is, tis, icepop} x score centering {off, on}, under a sampler whose weights are rounded to
3 bits and under samplers that are 4 and 8 weight versions old, with three seeds. One engine and one
learner serve all cells (`reset_config`), each cell starting from the bundled weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import ray
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from rlhf_algos.algorithms.recipes import addition
from rlhf_algos.algorithms.reinforce_sc import ReinforceSC, ReinforceSCConfig
from rlhf_algos.local_ray import start_ray
from rlhf_algos.runs import train_and_evaluate

CORRECTORS = ("none", "is", "tis", "icepop")
CONDITIONS: dict[str, dict[str, Any]] = {
    "3 bits": {"rounding_bits": 3},
    "lag 4": {"lag": 4},
    "lag 8": {"lag": 8},
}
SEEDS = (0, 1, 2)
# A policy that ends with less than this share of the accuracy it began with has collapsed.
COLLAPSED_BELOW = 0.5


def make_config(cell: dict[str, Any], arguments: argparse.Namespace) -> ReinforceSCConfig:
    """The configuration of a cell. The learning rate stays constant, so that drift has time to show."""
    config = addition(
        ReinforceSCConfig(),
        iterations=arguments.iterations,
        seed=cell["seed"],
        prompts_per_iteration=arguments.prompts,
        evaluation_problems=arguments.problems,
    )
    return (
        config.training(lr=arguments.lr, corrector=cell["corrector"], score_centering=cell["score_centering"])
        .sampling(greedy_evaluation=False)
        .mismatch_injection(**CONDITIONS[cell["condition"]])
    )


def run_cell(algorithm: ReinforceSC, cell: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains one cell; returns its curve and its diagnostics."""
    started = time.monotonic()
    curve, history = [], defaultdict(list)
    every = arguments.evaluate_every
    for iteration, result in train_and_evaluate(algorithm, arguments.iterations, evaluate_every=every):
        if "evaluation" in result:
            evaluated = result["evaluation"]["env_runners"]
            if evaluated["held_out"] != 1.0:
                raise RuntimeError(f"The evaluation played split {evaluated['split']!r}, which is not held out.")
            curve.append((iteration, evaluated["episode_return_mean"], evaluated["sampler_episode_return_mean"]))
        if not iteration:
            continue
        learner = result["learners"]["default_policy"]
        for name in ("entropy", "mismatch_kl", "ess", "tis_clipfrac", "grad_norm", "sc_term_abs"):
            if name in learner:
                history[name].append(round(float(learner[name]), 6))
        history["reward"].append(round(float(result["env_runners"]["episode_return_mean"]), 4))
    return cell | {"curve": curve, "history": dict(history), "seconds": time.monotonic() - started}


def run(arguments: argparse.Namespace) -> None:
    """Runs the cells that the file lacks, seed by seed, and appends each as one line."""
    file: Path = arguments.file
    done = [cell_of(row) for row in read(file)] if file.exists() else []
    cells = [
        {"condition": condition, "corrector": corrector, "score_centering": centering, "seed": seed}
        for seed, condition, corrector, centering in itertools.product(
            arguments.seeds, arguments.conditions, CORRECTORS, [value == "on" for value in arguments.centering]
        )
    ]
    missing = [cell for cell in cells if cell not in done]
    if not missing:
        return
    start_ray(log_to_driver=False, logging_level="error")
    algorithm = make_config(missing[0], arguments).build_algo()
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        for cell in track(missing, console=Console(stderr=True)):
            if not algorithm.reset_config(make_config(cell, arguments)):
                raise RuntimeError(f"{cell} needs another engine than {missing[0]}.")
            row = run_cell(algorithm, cell, arguments)
            with file.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            _, trainer, sampler = row["curve"][-1]
            print(f"{cell}: trainer {trainer:.3f}, sampler {sampler:.3f}, {row['seconds']:.0f} s", flush=True)
    finally:
        algorithm.stop()
        ray.shutdown()


def read(file: Path) -> list[dict[str, Any]]:
    """The rows of the file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def cell_of(row: dict[str, Any]) -> dict[str, Any]:
    """What identifies a row."""
    return {name: row[name] for name in ("condition", "corrector", "score_centering", "seed")}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per condition, corrector and centering: means over seeds, and the accuracy's standard deviation."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["condition"], row["corrector"], row["score_centering"]].append(row)
    lines = []
    for (condition, corrector, centering), members in groups.items():
        finals = [row["curve"][-1][1] for row in members]
        samplers = [row["curve"][-1][2] for row in members]
        firsts = [row["curve"][0][1] for row in members]
        drops = [max(row["curve"][0][1] - trainer for _, trainer, _ in row["curve"]) for row in members]
        entropies = [statistics.fmean(row["history"]["entropy"][-5:]) for row in members]
        lines.append(
            {
                "condition": condition,
                "corrector": corrector,
                "score centering": "on" if centering else "off",
                "seeds": len(members),
                "trainer": statistics.fmean(finals),
                "trainer sd": statistics.stdev(finals) if len(finals) > 1 else 0.0,
                "sampler": statistics.fmean(samplers),
                "sampler sd": statistics.stdev(samplers) if len(samplers) > 1 else 0.0,
                "worst drop": max(0.0, *drops),
                "collapsed": sum(f < COLLAPSED_BELOW * first for f, first in zip(finals, firsts, strict=True)),
                "entropy": statistics.fmean(entropies),
            }
        )
    return lines


def as_markdown(lines: list[dict[str, Any]]) -> str:
    """The summary as a table for the docs."""
    header = "| condition | corrector | centering | trainer | sampler | worst drop | collapsed | entropy |"
    rows = [header, "|---|---|---|---|---|---|---|---|"]
    for line in lines:
        rows.append(
            f"| {line['condition']} | {line['corrector']} | {line['score centering']} "
            f"| {line['trainer']:.3f} ± {line['trainer sd']:.3f} | {line['sampler']:.3f} ± {line['sampler sd']:.3f} "
            f"| {line['worst drop']:.3f} | {line['collapsed']} of {line['seeds']} | {line['entropy']:.2f} |"
        )
    return "\n".join(rows)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The trainer's accuracy over iterations: one panel per condition, mean over seeds; dashed with centering."""
    conditions = sorted({row["condition"] for row in rows})
    figure = Figure(figsize=(4.2 * len(conditions), 3.8), layout="constrained")
    panels = figure.subplots(1, len(conditions), sharey=True, squeeze=False)[0]
    for axes, condition in zip(panels, conditions, strict=True):
        for number, corrector in enumerate(CORRECTORS):
            for centering in (False, True):
                cell = (condition, corrector, centering)
                members = [r for r in rows if (r["condition"], r["corrector"], r["score_centering"]) == cell]
                if not members:
                    continue
                steps = [point[0] for point in members[0]["curve"]]
                means = [statistics.fmean(row["curve"][i][1] for row in members) for i in range(len(steps))]
                style = "--" if centering else "-"
                label = f"{corrector}{', centered' if centering else ''}"
                axes.plot(steps, means, style, color=f"C{number}", marker="o", markersize=3, label=label)
        axes.set_title(f"sampler: {condition}")
        axes.set_xlabel("iteration")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("held-out accuracy of the trainer's policy")
    panels[-1].legend(fontsize="x-small", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    """The two commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run what is missing")
    running.add_argument("file", type=Path)
    running.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    running.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    running.add_argument("--centering", nargs="+", choices=("off", "on"), default=["off", "on"])
    running.add_argument("--iterations", type=int, default=60)
    running.add_argument("--prompts", type=int, default=32)
    running.add_argument("--problems", type=int, default=400)
    running.add_argument("--evaluate-every", type=int, default=15)
    running.add_argument("--lr", type=float, default=5e-4)
    showing = commands.add_parser("table", help="print the table, draw the curves")
    showing.add_argument("file", type=Path)
    showing.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments)
        return 0
    rows = read(arguments.file)
    print(as_markdown(summary(rows)))
    if arguments.plot:
        draw(rows, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
