"""What routing replay costs a learner's step: no routes, routes only measured, routes replayed; one batch, in turn.

    python benchmarks/replay_cost.py --json docs/data/replay_cost.json

Exit status 1 if replaying takes more than 10 % longer than a step that handles no routes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.recipes import addition
from rlhf_algos.batch import RolloutBatch
from rlhf_algos.driver.calls import on_learners
from rlhf_algos.local_ray import start_ray

MOST_SHARE = 0.10
VARIANTS = ("no routes", "measured", "replayed")


def step_seconds(learner: Any, batch: RolloutBatch, variant: str) -> float:
    """One update, on the clock of the learner's process."""
    module = learner.module["default_policy"]
    replayer = module.replayer
    learner.config.router_replay = "r3" if variant == "replayed" else "none"
    if variant == "no routes":
        module.replayer = None
    try:
        started = time.perf_counter()
        learner.update_from_rollouts(batch, env_steps_sampled=0)
        return time.perf_counter() - started
    finally:
        module.replayer = replayer


def main() -> int:
    """Measures in turn, reports medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    start_ray(log_to_driver=False, logging_level="error")
    folder = tempfile.TemporaryDirectory()
    config = addition(GRPOConfig(), iterations=100).sampling(record_routes=True).debugging(save_batches=folder.name)
    algorithm = config.build_algo()
    try:
        algorithm.train()
        (file,) = Path(folder.name).iterdir()
        batch = RolloutBatch.load(file)
        seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for number in range(arguments.rounds + 1):
            for variant in VARIANTS:
                ((took),) = on_learners(
                    algorithm.learner_group, lambda learner, v=variant: step_seconds(learner, batch, v)
                )
                # The first round warms up.
                if number:
                    seconds[variant].append(took)
    finally:
        algorithm.stop()
        ray.shutdown()
        folder.cleanup()
    medians = {variant: statistics.median(values) for variant, values in seconds.items()}
    shares = {variant: medians[variant] / medians["no routes"] - 1 for variant in VARIANTS}
    assert batch.routes is not None
    tokens = batch.num_response_tokens + int(batch.prompt_lengths.sum())
    bytes_per_token = batch.routes.nbytes / len(batch.routes)
    for variant in VARIANTS:
        print(f"{variant:10s} {1000 * medians[variant]:7.1f} ms  {100 * shares[variant]:+5.1f} %")
    print(f"{tokens} tokens, routes {bytes_per_token:g} bytes per token ({batch.routes.dtype})")
    if arguments.json:
        result = {
            "processor": platform.processor() or platform.machine(),
            "median_seconds": medians,
            "share_over_no_routes": shares,
            "tokens": tokens,
            "route_bytes_per_token": bytes_per_token,
            "rounds": arguments.rounds,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if shares["replayed"] <= MOST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
