"""The numbers of six short runs, to the last bit: whether a change of the code's structure changed any of them.

    python benchmarks/same_numbers.py --json before.json            # before the change
    python benchmarks/same_numbers.py --against before.json         # after it; fails at the first difference

A run has three iterations with evaluations; recorded are tokens, rewards and everything else of its batches (as their
content hashes), and every metric but times. The runs cover both algorithms that the library began with, none and TIS
with routing replay, ZeRO 1 and 3, one and two ranks. Log-probabilities depend on the processor's instructions, so both
records are to be of one machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.batch import RolloutBatch

ITERATIONS = 3
#: Algorithm, corrector, router replay, ZeRO stage, ranks, further options of training.
RUNS: dict[str, tuple[type, str, str, int, int, dict[str, Any]]] = {
    "grpo-none-zero1-1": (GRPOConfig, "none", "none", 1, 1, {"kl_coefficient": 0.05}),
    "grpo-none-zero3-2": (GRPOConfig, "none", "none", 3, 2, {"minibatch_size": 16, "entropy_coefficient": 0.01}),
    "grpo-tis-r3-zero1-2": (GRPOConfig, "tis", "r3", 1, 2, {"minibatch_size": 20}),
    "sc-none-zero1-1": (ReinforceSCConfig, "none", "none", 1, 1, {}),
    "sc-tis-r3-zero1-1": (ReinforceSCConfig, "tis", "r3", 1, 1, {"entropy_coefficient": 0.01}),
    "sc-tis-r3-zero3-2": (ReinforceSCConfig, "tis", "r3", 3, 2, {}),
}
# Differ from run to run: times, and what the machine was doing.
_NOT_COMPARED = {"timers", "perf", "config", "hostname", "node_ip", "pid", "date", "timestamp", "trial_id"}


def numbers(result: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every number of a result but times, as text that holds all bits, by flat key."""
    flat: dict[str, str] = {}
    for key, value in result.items():
        if key in _NOT_COMPARED or str(key).startswith("time_") or str(key).endswith("_throughput"):
            continue
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{name}/")
        elif isinstance(value, bool | str):
            flat[name] = str(value)
        elif hasattr(value, "__float__"):
            flat[name] = float(value).hex()
    return flat


def run(name: str) -> dict[str, Any]:
    """The numbers of one run: those of each iteration's result, and the content hash of each batch."""
    algorithm_class, corrector, replay, zero_stage, ranks, options = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        config = (
            algorithm_class()
            .environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
            .language_model("rlhf_algos/tiny-moe")
            .vllm(dtype="bfloat16", max_model_len=64)
            .sampling(max_response_tokens=8)
            .learners(num_learners=ranks)
            .deepspeed(zero_stage=zero_stage, token_budget=200)
            .training(
                prompts_per_iteration=6,
                group_size=6,
                lr=1e-3,
                corrector=corrector,
                router_replay=replay,
                **options,
            )
            .evaluation(evaluation_interval=3, evaluation_duration=20)
            .debugging(seed=11, save_batches=folder)
        )
        algorithm = config.build_algo()
        try:
            results = [numbers(algorithm.train()) for _ in range(ITERATIONS)]
        finally:
            algorithm.stop()
        batches = [RolloutBatch.load(path) for path in sorted(Path(folder).glob("*.safetensors"))]
    return {
        "results": results,
        "batches": [batch.content_hash for batch in batches],
        "rewards": [[float(reward).hex() for reward in batch.rewards] for batch in batches],
    }


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """Where two records differ, one line each."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = sorted(set(before) | set(after))
        return [line for key in keys for line in differences(before.get(key), after.get(key), f"{where}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for place, (old, new) in pairs for line in differences(old, new, f"{where}[{place}]")]
    return [] if before == after else [f"{where}: {before} before, {after} now"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the record")
    parser.add_argument("--against", type=Path, help="an earlier record, to be equal to")
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    arguments = parser.parse_args()
    record = {}
    for name in arguments.runs:
        record[name] = run(name)
        print(
            f"{name}: {len(record[name]['results'][-1])} numbers in each result, {record[name]['batches']}", flush=True
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if arguments.against is not None:
        before = json.loads(arguments.against.read_text(encoding="utf-8"))
        found = differences({name: before[name] for name in arguments.runs}, record)
        print("\n".join(found) or f"{len(record)} runs, every number equal to those of {arguments.against}.")
        if found:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
