"""Keep a batch of a run, then see what each correction makes of exactly these samples.

    python examples/replay_saved_batch.py

A sampler with weights rounded to 3 bits answers 32 prompts 8 times each; the batch is saved. Then, without vLLM, the
gradient under every corrector, with and without score centering and routing replay, is compared with the uncorrected
one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ray

from rlhf_algos.algorithms.recipes import addition
from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.analysis.compare import compare_settings
from rlhf_algos.analysis.setting import all_settings
from rlhf_algos.batch import RolloutBatch
from rlhf_algos.local_ray import start_ray


def save_one_batch(folder: Path, prompts: int) -> Path:
    """Samples and trains one iteration; returns the file of its batch."""
    config = (
        addition(ReinforceSCConfig(), iterations=1, prompts_per_iteration=prompts)
        .sampling(record_routes=True)
        .mismatch_injection(rounding_bits=3)
        .debugging(save_batches=str(folder))
    )
    start_ray(log_to_driver=False, logging_level="error")
    algorithm = config.build_algo()
    try:
        algorithm.train()
    finally:
        algorithm.stop()
        ray.shutdown()
    return min(folder.glob("*.safetensors"))


def main() -> None:
    """Saves and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(time.strftime("runs/batches-%Y%m%d-%H%M%S")))
    parser.add_argument("--prompts", type=int, default=32, help="groups of 8 answers")
    arguments = parser.parse_args()
    file = save_one_batch(arguments.folder, arguments.prompts)
    batch = RolloutBatch.load(file)
    print(f"{file}: {batch.num_samples} answers, {batch.num_trained_tokens} tokens\n")
    print(f"{'setting':32s} {'cosine':>8s} {'norm ratio':>10s} {'clipped':>8s} {'k3 KL':>9s}")
    for row in compare_settings(batch, all_settings(router_replays=("none", "r3"))):
        # No weight is changed without a corrector.
        clipped = f"{row['tis_clipfrac']:.4f}" if "tis_clipfrac" in row else "-"
        numbers = f"{row['cosine']:8.4f} {row['norm_ratio']:10.4f} {clipped:>8s} {row['mismatch_kl']:9.5f}"
        print(f"{row['setting']:32s} {numbers}")


if __name__ == "__main__":
    main()
