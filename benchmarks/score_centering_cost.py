"""What score centering with a head of 128 costs in the trainer's loss, in time and peak memory, in one run.

    python benchmarks/score_centering_cost.py --json docs/data/score_centering_cost.json

Both variants go from hidden states to the reduced loss and back to the gradients of hidden states and weight, on the
vocabulary of Qwen3. `sampled token` is the REINFORCE loss with a truncated importance weight; `centered` is the same
with log-probabilities of the sampler's 128 most probable tokens, the centering term and its loss. Medians over rounds
that alternate, each measurement in a fresh process (`measuring.py`); memory is what comes on top of the inputs.

Other busy processes disturb the wall-clock time of two threads greatly, that of the CPU less: on a loaded machine run
with `--threads 1 --clock cpu`, which compares the CPU seconds of one thread.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import measuring
import torch
from torch import Tensor

from rlhf_algos.objectives import (
    centered_reinforce_loss,
    chunked_logprobs,
    reduce_loss,
    reinforce_loss,
    score_centering_term,
)

VARIANTS = ("sampled token", "centered")
MOST = {"seconds": 1.15, "mebibytes": 1.10}


def truncated(ratio: Tensor) -> Tensor:
    return ratio.clamp(0.0, 2.0)


def make_inputs(options: argparse.Namespace, tokens: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    vocabulary, width, head = options.vocabulary, options.width, options.head
    dtype = getattr(torch, options.dtype)
    weight = torch.empty(vocabulary, width, dtype=dtype)
    # One logit more than the head stands for the mass outside of it.
    head_logits = torch.randn(tokens, head + 1, generator=generator) * 3
    # Distinct in a row, as a sampler's are: numbers that start anywhere and go around in equal steps.
    starts = torch.randint(vocabulary, (tokens, 1), generator=generator)
    return {
        "hidden": torch.randn(tokens, width, generator=generator).to(dtype).requires_grad_(),
        "weight": weight.normal_(0.0, width**-0.5, generator=generator).requires_grad_(),
        "targets": torch.randint(vocabulary, (tokens,), generator=generator),
        "advantages": torch.randn(tokens, generator=generator),
        "rollout_logprobs": torch.full((tokens,), -12.0),
        "head_ids": (starts + torch.arange(head) * (vocabulary // head)) % vocabulary,
        "rollout_head_logprobs": torch.log_softmax(head_logits, 1)[:, :head].contiguous(),
    }


def run(variant: str, inputs: dict[str, Tensor]) -> None:
    """Forward and backward."""
    centered, advantages = variant == "centered", inputs["advantages"]
    output = chunked_logprobs(
        inputs["hidden"],
        inputs["weight"],
        inputs["targets"],
        head_ids=inputs["head_ids"] if centered else None,
    )
    weights = truncated((output.logprobs.detach() - inputs["rollout_logprobs"]).exp())
    if centered:
        assert output.head_logprobs is not None
        term, _, _ = score_centering_term(output.head_logprobs, inputs["rollout_head_logprobs"], truncated)
        loss = centered_reinforce_loss(output.logprobs, advantages, weights, term)
    else:
        loss = weights * reinforce_loss(output.logprobs, advantages)
    reduce_loss(loss, torch.full_like(loss, 1.0 / loss.numel())).backward()


def measure(options: argparse.Namespace) -> measuring.Sample:
    small = argparse.Namespace(**{**vars(options), "vocabulary": 512, "head": min(options.head, 8)})
    run(options.variant, make_inputs(small, 16))
    inputs = make_inputs(options, options.tokens)
    return measuring.measure(lambda: run(options.variant, inputs), options.clock)


def compare(options: argparse.Namespace) -> dict[str, Any]:
    names = ("tokens", "vocabulary", "width", "head", "threads", "clock", "dtype")
    sizes = measuring.sizes(options, names)
    samples = measuring.alternate(
        VARIANTS,
        options.rounds,
        lambda variant: measuring.in_fresh_process(
            __file__, [*sizes, "--measure", f"--variant={variant}"], options.threads
        ),
    )
    medians = measuring.medians(samples)
    return {
        "machine": f"{platform.machine()}, torch {torch.__version__}",
        "load_average": os.getloadavg(),
        "options": {name: getattr(options, name) for name in (*names, "rounds")},
        "samples": samples,
        "medians": medians,
        "ratios": {key: medians["centered"][key] / medians["sampled token"][key] for key in MOST},
        "limits": MOST,
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['machine']}; load average {result['load_average'][0]:.1f}; {result['options']}")
    for variant, figures in result["medians"].items():
        print(f"{variant:16}{figures['seconds']:8.2f} s{figures['mebibytes']:8.0f} MiB   (medians)")
    for key, ratio in result["ratios"].items():
        print(f"{key:16}{ratio:8.3f} of the sampled token's (at most {MOST[key]}): {verdict(key, ratio)}")


def verdict(key: str, ratio: float) -> str:
    return "PASS" if ratio <= MOST[key] else "MISS"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 2048), ("vocabulary", 151_936), ("width", 512), ("head", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--clock", choices=tuple(measuring.CLOCKS), default="wall", help="which seconds to compare")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)
    if options.measure:
        print(json.dumps(measure(options)))
        return 0
    result = compare(options)
    show(result)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(verdict(key, ratio) == "MISS" for key, ratio in result["ratios"].items()))


if __name__ == "__main__":
    sys.exit(main())
