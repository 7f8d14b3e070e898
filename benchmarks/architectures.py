"""Does an architecture work from end to end? A tiny random model of each is trained, published, saved and loaded again.

    .venv/bin/python benchmarks/architectures.py --json docs/data/architectures.json
    .venv/bin/python benchmarks/architectures.py gpt_oss:untied:320 --json /tmp/one.json

Each case (architecture, tied or untied head, vocabulary) is one process with the library's own rollout actor (a real
vLLM engine) and learner (a real DeepSpeed engine), as plain objects without Ray around them; several cases share it,
one after another. A case trains four iterations in float32 on both sides, with R3 where the model has routers, and
records

* `differences`: mean |log p - log q| of the sampled tokens, with the first weights and after each of three updates;
* `moved`: the same for weights that are one update old, so what a sampler that missed an update would show;
* `saved_in_vllm`, `saved_in_transformers`: mean and largest difference between the trainer and the model that it saved,
  loaded by a new vLLM engine and by transformers, on responses which that engine sampled;
* `route_mismatch`, `replayed_fraction`: of the last iteration, with R3.

A case that does not work has its `error` instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from architecture_cases import Case, every_case, one_of_each
from architecture_models import write_model

ITERATIONS = 4
# The largest mean difference in float32 that is rounding.
EXACT = 1e-6
# With a bfloat16 sampler.
ROUNDED = 5e-2
# How many times farther away a sampler that missed an update would at least be.
MOVED = 10


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """Trains, saves and loads one model; returns what was found."""
    model = write_model(folder / "model", case.architecture, tied=case.tied, vocabulary=case.vocabulary)
    config = config_for(model, case)
    with rollout_actor(config) as runner:
        spec = config.get_multi_rl_module_spec(spaces=runner.get_spaces())
        learner = config.learner_class(config=config, module_spec=spec)
        learner.build()
        result = train(learner, runner, config)
    learner.save_pretrained(str(folder / "saved"))
    with rollout_actor(config_for(folder / "saved", case)) as saved:
        saved.use_loaded_weights()
        batch = sample(saved, 0, config)
    expected = learner.old_logprobs_of(batch)
    result["sampler_dtype"] = case.sampler_dtype
    result |= difference("saved_in_vllm", batch.rollout_logprobs, expected)
    result |= difference("saved_in_transformers", transformers_logprobs(folder / "saved", batch), expected)
    learner.engine.destroy()
    return result


def train(learner: Any, runner: Any, config: Any) -> dict[str, Any]:
    """Four iterations; what was measured in them."""
    differences, moved, metrics = [], [], {}
    for version in range(ITERATIONS):
        publish(learner, runner, version)
        batch = sample(runner, version, config)
        metrics = learner.update_from_rollouts(batch, env_steps_sampled=0)
        differences.append(metrics["train_rollout_logprob_abs_diff"])
        moved += difference("old", batch.rollout_logprobs, learner.old_logprobs_of(batch))["old"][:1]
    routes = {name: metrics[name] for name in ("route_mismatch", "replayed_fraction") if name in metrics}
    return {"differences": differences, "moved": moved, **routes}


def config_for(model: Path, case: Case) -> Any:
    """GRPO without anything that a sampler could differ in but the weights."""
    import numpy

    from rlhf_algos.algorithms.grpo import GRPOConfig
    from rlhf_algos.envs import PromptEnv

    class AnyReward(PromptEnv):
        """A number that differs from response to response: random models earn nothing that makes sense."""

        def prompt(self, rng: numpy.random.Generator) -> str:
            """An addition."""
            return f"{rng.integers(100, 1000)}+{rng.integers(100, 1000)}="

        def reward(self, response: str) -> float:
            """From the letters."""
            return sum(ord(letter) * (place + 1) for place, letter in enumerate(response)) % 7 / 7

    config = (
        GRPOConfig()
        .environment(AnyReward, env_config={"split": "all"})
        .language_model(str(model), dtype="float32")
        .sampling(max_response_tokens=12, record_routes=case.has_routers)
        .vllm(dtype=case.sampler_dtype, max_model_len=64, max_num_seqs=32, num_gpu_blocks_override=128)
        .learners(num_learners=0)
        .deepspeed(token_budget=200)
        .training(prompts_per_iteration=4, group_size=4, lr=3e-3, router_replay="r3" if case.has_routers else "none")
        .debugging(seed=0)
    )
    config.validate()
    return config


@contextmanager
def rollout_actor(config: Any) -> Iterator[Any]:
    """The library's rollout actor, as an object of this process, and its engine gone afterwards."""
    from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner

    runner = VLLMEnvRunner(config=config, worker_index=1)
    runner.require_constructed()
    try:
        yield runner
    finally:
        runner.stop()
        runner.engine.close()


def publish(learner: Any, runner: Any, version: int) -> None:
    """Hands the learner's weights over."""
    from rlhf_algos.weight_sync.mismatch_injection import NO_INJECTION

    tensors = learner.checkpoint_tensors()
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != runner.checkpoint_layout:
        differing = sorted(set(shapes.items()) ^ set(runner.checkpoint_layout.items()))
        raise ValueError(f"The learner's tensors are not those of the checkpoint: {differing[:6]}")
    runner.load_weights(tensors.items(), version, injection=NO_INJECTION)


def sample(runner: Any, version: int, config: Any) -> Any:
    """A batch with advantages."""
    import torch

    from rlhf_algos.objectives import group_advantages

    groups = range(version * config.prompts_per_iteration, (version + 1) * config.prompts_per_iteration)
    batch, _ = runner.sample_groups(list(groups), weight_version=version)
    rewards, ids = torch.from_numpy(batch.rewards.copy()).float(), torch.from_numpy(batch.group_ids.copy())
    return dataclasses.replace(batch, advantages=group_advantages(rewards, ids).numpy())


def transformers_logprobs(folder: Path, batch: Any) -> Any:
    """log p of every response token by a plain forward pass of what was saved, `[T]`."""
    import numpy
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    prompts = numpy.split(batch.prompt_ids, numpy.cumsum(batch.prompt_lengths)[:-1])
    responses = numpy.split(batch.response_ids, numpy.cumsum(batch.response_lengths)[:-1])
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        tokens = torch.from_numpy(numpy.concatenate([prompt, response]).astype("int64"))
        with torch.no_grad():
            logprobs = model(tokens[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        found.append(logprobs.gather(1, tokens[len(prompt) :, None])[:, 0])
    return torch.cat(found)


def difference(name: str, found: Any, expected: Any) -> dict[str, list[float]]:
    """Mean and largest |found - expected|."""
    import torch

    absolute = (torch.as_tensor(found) - expected).abs()
    return {name: [float(absolute.mean()), float(absolute.max())]}


def works(result: dict[str, Any]) -> bool:
    """Whether a case shows what "supported" means."""
    if "error" in result:
        return False
    exact = result["sampler_dtype"] == "float32"
    furthest = max(*result["differences"], result["saved_in_vllm"][0])
    return (
        furthest < (EXACT if exact else ROUNDED)
        and furthest * MOVED < min(result["moved"])
        and result["saved_in_transformers"][0] < (EXACT if exact else ROUNDED)
        and (not exact or result.get("route_mismatch", 0.0) == 0.0)
        and result.get("replayed_fraction", 1.0) == 1.0
    )


def run_here(cases: Sequence[Case]) -> None:
    """Prints a line of JSON for each case."""
    for case in cases:
        start = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory() as folder:
                result = run_case(case, Path(folder))
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        result["seconds"] = round(time.perf_counter() - start, 1)
        print("\nresult " + json.dumps({"case": str(case), **result}), flush=True)


def run_in_processes(cases: Sequence[Case], count: int) -> dict[str, dict[str, Any]]:
    """Splits the cases between `count` processes; the cases of one that dies are run alone, each in its own."""
    workers = [start_worker(cases[place::count]) for place in range(count) if cases[place::count]]
    found: dict[str, dict[str, Any]] = {}
    for worker in workers:
        found |= read_results(worker)
    for case in cases:
        if str(case) not in found:
            found |= {str(case): {"error": "the process ended"}} | read_results(start_worker([case]))
    return {str(case): found[str(case)] for case in cases}


def start_worker(cases: Sequence[Case]) -> subprocess.Popen[str]:
    """This script in a process of its own."""
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
    command = [sys.executable, __file__, "--here", *map(str, cases)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def read_results(worker: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    """The results that a worker prints, until it ends."""
    found = {}
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("result "):
            result = json.loads(line.removeprefix("result "))
            found[result.pop("case")] = result
            print_row(result, found)
    worker.wait()
    return found


def print_row(result: dict[str, Any], found: dict[str, Any]) -> None:
    """One line about the last result."""
    name = list(found)[-1]
    if "error" in result:
        print(f"{name:28} {result['error'][:160]}", file=sys.stderr)
        return
    numbers = " ".join(f"{value:.1e}" for value in result["differences"])
    state = "works" if works(result) else "DIFFERS"
    print(
        f"{name:28} {state:8} {numbers}  saved {result['saved_in_vllm'][0]:.1e} "
        f"{result['saved_in_transformers'][0]:.1e}  {result['seconds']} s",
        file=sys.stderr,
    )


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=Case.parse, help="default: every architecture, head and vocabulary")
    parser.add_argument("--one-of-each", action="store_true", help="one head and vocabulary for each architecture")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cases = arguments.cases or (one_of_each() if arguments.one_of_each else every_case())
    if arguments.here:
        run_here(cases)
        return
    found = run_in_processes(cases, arguments.processes)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    failed = [name for name, result in found.items() if not works(result)]
    print(f"{len(found) - len(failed)} of {len(found)} work" + (f"; not: {', '.join(failed)}" if failed else ""))


if __name__ == "__main__":
    main()
