"""Time and peak memory of chunked log-probabilities against the full log_softmax, forward and backward.

    python benchmarks/chunked_logprobs.py --json result.json

Every measurement is a fresh process (`measuring.py`): it makes the inputs, runs each code path once on a few tokens,
and runs forward and backward once. Variants alternate, and a figure is the median over rounds. Memory is what comes on
top of hidden states, weight and ids; the gradients of hidden states and weight are included.

Other busy processes disturb the wall-clock time of two threads greatly, that of the CPU less: on a loaded
machine run with `--threads 1 --clock cpu`, which compares the CPU seconds of one thread.

`full` multiplies in the inputs' dtype, makes the logits float32, takes log_softmax and gathers. Where the CPU
has no bfloat16 instructions that product takes many minutes, so there `full` makes its inputs float32 first,
the faster choice.
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

from rlhf_algos.objectives import chunked_logprobs

VARIANTS = ("full", "chunked", "chunked-no-head")
DTYPES = ("float32", "bfloat16")
# (name, variant, reference, quantity, highest ratio that passes)
BARS = (
    ("time against full", "chunked", "full", "seconds", 1.1),
    ("memory against full", "chunked", "full", "mebibytes", 1 / 3),
    ("time of the head", "chunked", "chunked-no-head", "seconds", 1.15),
    ("memory of the head", "chunked", "chunked-no-head", "mebibytes", 1.10),
)
TOLERANCE = 1e-5


def cpu_multiplies_bfloat16() -> bool:
    features = torch.cpu.get_capabilities()
    return bool(features.get("avx512_bf16") or features.get("amx_bf16") or features.get("bf16"))


def make_inputs(options: argparse.Namespace, tokens: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    vocabulary, width = options.vocabulary, options.width
    hidden = torch.randn(tokens, width, generator=generator).to(dtype)
    weight = torch.empty(vocabulary, width, dtype=dtype)
    weight.normal_(0.0, width**-0.5, generator=generator)
    return {
        "hidden": hidden.requires_grad_(),
        "weight": weight.requires_grad_(),
        "targets": torch.randint(vocabulary, (tokens,), generator=generator),
        "head_ids": torch.randint(vocabulary, (tokens, options.head), generator=generator),
    }


def run(variant: str, inputs: dict[str, Tensor], chunk_size: int | None) -> list[Tensor]:
    """Forward and backward; returns the log-probs of target and head."""
    hidden, weight, targets, head_ids = inputs.values()
    if variant == "full":
        upcast = hidden.dtype == torch.bfloat16 and not cpu_multiplies_bfloat16()
        logits = hidden.float() @ weight.float().t() if upcast else hidden @ weight.t()
        logprobs = torch.log_softmax(logits.float(), -1)
        del logits
        results = [logprobs.gather(1, targets[:, None])[:, 0], logprobs.gather(1, head_ids)]
        del logprobs
    else:
        head = head_ids if variant == "chunked" else None
        result = chunked_logprobs(hidden, weight, targets, head_ids=head, chunk_size=chunk_size)
        results = [value for value in result if value is not None]
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(value.shape, generator=generator) / value[0].numel() for value in results]
    torch.autograd.backward(results, upstream)
    return [value.detach() for value in results]


def measure(options: argparse.Namespace) -> measuring.Sample:
    inputs = make_inputs(options, options.tokens, getattr(torch, options.dtype))
    small = argparse.Namespace(**{**vars(options), "vocabulary": 512, "head": min(options.head, 8)})
    run(options.variant, make_inputs(small, 16, getattr(torch, options.dtype)), options.chunk_size)
    return measuring.measure(lambda: run(options.variant, inputs, options.chunk_size), options.clock)


def largest_differences(options: argparse.Namespace) -> dict[str, float]:
    """Values and gradients of the two float32 paths, on an eighth of the tokens."""
    results = {}
    for variant in ("full", "chunked"):
        inputs = make_inputs(options, max(1, options.tokens // 8), torch.float32)
        values = run(variant, inputs, options.chunk_size)
        results[variant] = [*values, inputs["hidden"].grad, inputs["weight"].grad]
    names = ("logprobs", "head_logprobs", "hidden gradient", "weight gradient")
    pairs = zip(results["full"], results["chunked"], strict=True)
    return {name: (a - b).abs().max().item() for name, (a, b) in zip(names, pairs, strict=True)}


def in_fresh_process(options: argparse.Namespace, *arguments: str) -> dict[str, float]:
    names = ("tokens", "vocabulary", "width", "head", "threads", "clock", "chunk-size")
    return measuring.in_fresh_process(__file__, [*measuring.sizes(options, names), *arguments], options.threads)


def compare(options: argparse.Namespace) -> dict[str, Any]:
    samples, medians = {}, {}
    for dtype in DTYPES:
        print(dtype, file=sys.stderr)
        samples[dtype] = measuring.alternate(
            VARIANTS,
            options.rounds,
            lambda variant, dtype=dtype: in_fresh_process(
                options, "--measure", f"--variant={variant}", f"--dtype={dtype}"
            ),
        )
        medians[dtype] = measuring.medians(samples[dtype])
    return {
        "machine": f"{platform.machine()}, torch {torch.__version__}",
        "native_bfloat16": cpu_multiplies_bfloat16(),
        "load_average": os.getloadavg(),
        "options": {k: v for k, v in vars(options).items() if isinstance(v, int | str)},
        "samples": samples,
        "medians": medians,
        "bars": [
            {
                "dtype": dtype,
                "bar": name,
                "ratio": medians[dtype][variant][key] / medians[dtype][reference][key],
                "limit": limit,
            }
            for dtype in DTYPES
            for name, variant, reference, key, limit in BARS
        ],
        "largest_differences": in_fresh_process(options, "--check"),
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['machine']}; load average {result['load_average'][0]:.1f}; sizes {result['options']}")
    if not result["native_bfloat16"]:
        print("this CPU has no bfloat16 instructions: `full` is given float32 copies of its bfloat16 inputs")
    print(f"\n{'dtype':10}{'variant':18}{'seconds':>10}{'MiB':>10}   (medians)")
    for dtype, by_variant in result["medians"].items():
        for variant, figures in by_variant.items():
            print(f"{dtype:10}{variant:18}{figures['seconds']:10.2f}{figures['mebibytes']:10.0f}")
    print(f"\n{'dtype':10}{'bar':22}{'ratio':>8}{'limit':>8}")
    for bar in result["bars"]:
        verdict = "PASS" if bar["ratio"] <= bar["limit"] else "MISS"
        print(f"{bar['dtype']:10}{bar['bar']:22}{bar['ratio']:8.3f}{bar['limit']:8.3f}  {verdict}")
    print("\nlargest difference from full, float32")
    for name, difference in result["largest_differences"].items():
        print(f"{name:32}{difference:8.1e}{TOLERANCE:8.0e}  {'PASS' if difference <= TOLERANCE else 'MISS'}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 2048), ("vocabulary", 151_936), ("width", 512), ("head", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--clock", choices=tuple(measuring.CLOCKS), default="wall", help="which seconds to compare")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk-size", type=int, help="vocabulary entries per slice; the library's choice if absent")
    parser.add_argument("--json", type=Path, help="also write the result there")
    for hidden in ("--measure", "--check"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", choices=DTYPES, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    if options.measure:
        print(json.dumps(measure(options)))
    elif options.check:
        print(json.dumps(largest_differences(options)))
    else:
        result = compare(options)
        show(result)
        if options.json is not None:
            options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
