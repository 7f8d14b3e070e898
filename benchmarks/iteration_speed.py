"""Samples per second of a whole synchronous iteration, against TRL's GRPOTrainer, taken in turn in one run.

    .venv/bin/python benchmarks/iteration_speed.py --compile --json docs/data/iteration_speed_compiled.json

Both train the same model on the same machine: 8 prompts x 8 responses of exactly 32 tokens, float32, one optimizer step
per iteration, no head and no routes recorded. TRL generates with `generate` (its vLLM mode does not run on a CPU as
shipped). The model is a copy of the bundled one whose end token is (almost) never sampled: at least 98 % of the tokens
are there. Prints the medians, their ratio, and where this library's iteration spends its time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.envs import PromptEnv
from rlhf_algos.local_ray import start_ray
from rlhf_algos.models import resolve_model

PROMPTS, GROUP_SIZE, RESPONSE_TOKENS = 8, 8, 32
PHASES = ("sample", "learner_update", "weight_sync")
LEAST_RATIO = 0.7
END_ID, END_TOKEN = 6, "<|tool|>"


class Digits(PromptEnv):
    """The share of digits in the response: cheap, and not constant."""

    def prompt(self, rng: Any) -> str:
        """Two numbers."""
        return f"{rng.integers(10, 100)}+{rng.integers(10, 100)}="

    def reward(self, response: str) -> float:
        """The share of digits."""
        return sum(character.isdigit() for character in response) / max(1, len(response))


def endless_model(folder: Path) -> Path:
    """A copy of the bundled model whose end token is one that is never sampled."""
    source = Path(resolve_model("rlhf_algos/tiny-moe"))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    for name, key, value in (
        ("config.json", "eos_token_id", END_ID),
        ("generation_config.json", "eos_token_id", END_ID),
        ("tokenizer_config.json", "eos_token", END_TOKEN),
    ):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {key: value}))
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    torch.manual_seed(0)
    prompts = torch.randint(0, model.config.vocab_size, (256, 4))
    tokens = model.generate(prompts, do_sample=True, max_new_tokens=40, min_new_tokens=40, pad_token_id=0)
    with torch.no_grad():
        hidden = model.base_model(tokens).last_hidden_state.flatten(0, 1)
    tensors = load_file(folder / "model.safetensors")
    # The direction whose product with every hidden state is closest to -60: a logit far below all others.
    wanted = torch.full((len(hidden), 1), -60.0)
    tensors["lm_head.weight"][END_ID] = torch.linalg.lstsq(hidden, wanted).solution[:, 0]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class TRL:
    """The TRL worker in its own environment; waits between commands."""

    def __init__(self, python: str, model: Path, threads: int) -> None:
        script = Path(__file__).with_name("trl_grpo.py")
        self.process = subprocess.Popen(
            [python, str(script), str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        self.settings = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("The TRL worker ended; run benchmarks/trl_grpo.py by hand to see why.")
        return json.loads(line)

    def run(self, iterations: int) -> list[float]:
        """Seconds of each of `iterations`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"run {iterations}\n")
        self.process.stdin.flush()
        return self._answer()["seconds"]

    def close(self) -> None:
        """Ends the worker."""
        assert self.process.stdin is not None
        self.process.stdin.write("quit\n")
        self.process.stdin.flush()
        self.process.wait(timeout=60)


def build(model: Path, arguments: argparse.Namespace) -> GRPO:
    """This library with the same work per iteration."""
    config = (
        GRPOConfig()
        .environment(Digits, env_config={"split": "all"})
        .language_model(str(model), dtype="float32")
        .sampling(max_response_tokens=RESPONSE_TOKENS)
        .vllm(dtype="float32", max_model_len=64, max_num_seqs=64, enforce_eager=not arguments.compile, **arguments.vllm)
        .env_runners(num_cpus_per_env_runner=arguments.sampler_threads)
        .learners(num_learners=1, num_cpus_per_learner=arguments.learner_threads)
        .training(lr=1e-6, prompts_per_iteration=PROMPTS, group_size=GROUP_SIZE)
        .debugging(seed=0)
    )
    return config.build_algo()


def run_ours(algorithm: GRPO, iterations: int) -> tuple[list[float], list[dict[str, float]]]:
    """Seconds of each iteration, and of its phases."""
    seconds, phases = [], []
    for _ in range(iterations):
        started = time.perf_counter()
        result = algorithm.train()
        seconds.append(time.perf_counter() - started)
        phases.append({name: float(result["timers"][name]) for name in PHASES})
        length = result["env_runners"]["response_length_mean"]
        # A rare response ends early all the same.
        if length < 0.98 * RESPONSE_TOKENS:
            raise RuntimeError(f"Responses had {length} tokens on average, not {RESPONSE_TOKENS}.")
    return seconds, phases


def main() -> int:
    """Alternates and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl-python", default=".venv-trl/bin/python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10, help="per round and side")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="TRL's threads")
    parser.add_argument("--sampler-threads", type=int, default=1)
    parser.add_argument("--learner-threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="compiled vLLM instead of eager")
    parser.add_argument("--vllm", type=json.loads, default={}, help="further engine arguments, as JSON")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    start_ray(num_cpus=4, log_to_driver=False, logging_level="error")
    with tempfile.TemporaryDirectory() as folder:
        model = endless_model(Path(folder) / "model")
        algorithm = build(model, arguments)
        trl = None if arguments.ours_only else TRL(arguments.trl_python, model, arguments.threads)
        ours, theirs, phases = [], [], []
        try:
            run_ours(algorithm, 5)
            for _ in range(arguments.rounds):
                if trl is not None:
                    theirs += trl.run(arguments.iterations)
                seconds, parts = run_ours(algorithm, arguments.iterations)
                ours += seconds
                phases += parts
        finally:
            if trl is not None:
                trl.close()
            algorithm.stop()
            ray.shutdown()
    return report(ours, theirs, phases, arguments)


def report(
    ours: list[float], theirs: list[float], phases: list[dict[str, float]], arguments: argparse.Namespace
) -> int:
    """Prints medians and the ratio, writes JSON; the exit status says whether the bar is met."""
    responses = PROMPTS * GROUP_SIZE
    median = statistics.median(ours)
    result: dict[str, Any] = {"ours": {"seconds": median, "samples_per_second": responses / median}}
    print(f"rlhf-algos  {median * 1000:7.1f} ms/iteration  {responses / median:6.1f} samples/s (median of {len(ours)})")
    for name in PHASES:
        value = statistics.median(phase[name] for phase in phases)
        result["ours"][name] = value
        print(f"    {name:15s} {value * 1000:7.1f} ms")
    rest = median - sum(result["ours"][name] for name in PHASES)
    print(f"    {'everything else':15s} {rest * 1000:7.1f} ms")
    ratio = None
    if theirs:
        their_median = statistics.median(theirs)
        ratio = their_median / median
        result["trl"] = {"seconds": their_median, "samples_per_second": responses / their_median}
        result["ratio"] = ratio
        print(f"TRL         {their_median * 1000:7.1f} ms/iteration  {responses / their_median:6.1f} samples/s")
        print(f"ratio       {ratio:.2f} (at least {LEAST_RATIO}): {'PASS' if ratio >= LEAST_RATIO else 'MISS'}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1))
    return 0 if ratio is None or ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
