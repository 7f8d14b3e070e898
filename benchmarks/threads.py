"""Time of an iteration with one thread for the sampler and one for the learner, against all cores in each phase.

    python benchmarks/threads.py --json docs/data/threads.json

Both algorithms live at once and take their iterations in turn, so that a drift of the machine's load favours neither.
Run with the bundled model, which is bound by Python, and with a random Llama of 29 million parameters, which computes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.local_ray import start_ray
from rlhf_algos.models import resolve_model

PHASES = ("sample", "learner_update", "weight_sync")
VARIANTS = {"one thread each": 1, "all cores in each phase": None}


def random_llama(path: Path) -> Path:
    """A Llama with the bundled model's tokenizer."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=263,
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=9,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=128,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )
    )
    model.save_pretrained(path)
    bundled = Path(resolve_model("rlhf_algos/tiny-moe"))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(bundled / name, path / name)
    return path


def build(model: str, threads: int | None) -> GRPO:
    """An algorithm whose only difference is its number of threads."""
    config = (
        GRPOConfig()
        .environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
        .language_model(model, dtype="float32")
        .sampling(max_response_tokens=16)
        .vllm(dtype="float32", max_model_len=64, max_num_seqs=64)
        .env_runners(num_threads_per_env_runner=threads)
        .learners(num_threads_per_learner=threads)
        .training(lr=1e-6, prompts_per_iteration=8, group_size=8)
        .debugging(seed=0)
    )
    return config.build_algo()


def timed(algorithm: GRPO) -> dict[str, float]:
    """Seconds of an iteration and of its phases."""
    started = time.perf_counter()
    result = algorithm.train()
    seconds = {"iteration": time.perf_counter() - started}
    return seconds | {name: float(result["timers"][name]) for name in PHASES}


def measured(model: str, iterations: int) -> dict[str, Any]:
    """Medians of both variants, in turn."""
    algorithms = {name: build(model, threads) for name, threads in VARIANTS.items()}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    try:
        for algorithm in algorithms.values():
            algorithm.train()
        for number in range(iterations):
            for name in list(VARIANTS)[:: 1 if number % 2 == 0 else -1]:
                samples[name].append(timed(algorithms[name]))
    finally:
        for algorithm in algorithms.values():
            algorithm.stop()
    medians = {
        name: {key: statistics.median(sample[key] for sample in taken) for key in taken[0]}
        for name, taken in samples.items()
    }
    first, second = (medians[name]["iteration"] for name in VARIANTS)
    return {"medians": medians, "samples": samples, "iteration_ratio": second / first}


def main() -> int:
    """Measures both models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=7, help="of each variant and model, at least 5")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    start_ray(num_cpus=4, log_to_driver=False, logging_level="error")
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        models = {"bundled": "rlhf_algos/tiny-moe", "llama-29M": str(random_llama(Path(folder) / "llama"))}
        results: dict[str, Any] = {name: measured(model, arguments.iterations) for name, model in models.items()}
    results |= {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()}
    for name in models:
        print(name)
        for variant, medians in results[name]["medians"].items():
            print(f"  {variant:24}", "  ".join(f"{key} {value:.3f} s" for key, value in medians.items()))
        print(f"  all cores / one thread: {results[name]['iteration_ratio']:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    ray.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
