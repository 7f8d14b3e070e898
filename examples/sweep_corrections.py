"""Which correction helps? Ray Tune runs one trial per corrector and routing replay, all of them on one engine.

    python examples/sweep_corrections.py --iterations 15

Prints the final numbers of every trial. The same from a file, with seeds, a live table and resuming:
`rlhf-algos sweep examples/configs/sweep_corrections.yaml`; and as a page: `rlhf-algos report FOLDER`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ray
from ray import tune

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.recipes import addition
from rlhf_algos.local_ray import start_ray


def make_config(iterations: int, prompts: int, problems: int) -> GRPOConfig:
    """Everything is fixed but the corrector and the replay."""
    return (
        addition(
            GRPOConfig(), iterations=iterations, prompts_per_iteration=prompts, evaluation_problems=problems, seed=0
        )
        # A coarse sampler, so that there is something to correct.
        .vllm(dtype="bfloat16")
        .mismatch_injection(rounding_bits=3)
        # An engine records routes or does not; recording in every trial lets those with and without R3 share it.
        .sampling(record_routes=True, greedy_evaluation=False)
        .training(
            corrector=tune.grid_search(["none", "tis", {"type": "icepop", "high": 5.0}]),
            router_replay=tune.grid_search(["none", "r3"]),
        )
        .evaluation(evaluation_interval=iterations)
    )


def run(config: GRPOConfig, iterations: int, folder: Path) -> tune.ResultGrid:
    """One trial after another; `reuse_actors` gives each the processes of the one before it."""
    return tune.Tuner(
        GRPO,
        param_space=config,
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.absolute().parent),
            stop={"training_iteration": iterations},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            verbose=1,
        ),
    ).fit()


def main() -> None:
    """Runs the sweep and prints a line per trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--prompts", type=int, default=32, help="groups of 8 responses in an iteration")
    parser.add_argument("--problems", type=int, default=400, help="held-out problems in an evaluation")
    parser.add_argument("--folder", type=Path, default=Path("runs/sweep_corrections"))
    arguments = parser.parse_args()

    start_ray(log_to_driver=False, logging_level="error")
    config = make_config(arguments.iterations, arguments.prompts, arguments.problems)
    for result in run(config, arguments.iterations, arguments.folder):
        chosen = f"{result.config['corrector']!s:32} {result.config['router_replay']:5}"
        if result.error:
            print(chosen, "failed:", result.error)
            continue
        learner = result.metrics["learners"]["default_policy"]
        print(
            chosen,
            f"held-out {result.metrics['evaluation']['env_runners']['episode_return_mean']:.3f}",
            f"mismatch {learner['train_rollout_logprob_abs_diff']:.4f}",
            # Without a corrector no weight is changed.
            f"clipped {learner['tis_clipfrac']:.3f}" if "tis_clipfrac" in learner else "not corrected",
            f"routes that differ {learner['route_mismatch']:.4f}",
        )
    ray.shutdown()


if __name__ == "__main__":
    main()
