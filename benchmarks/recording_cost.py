"""What recording the 128-token head and the routes costs in rollout tokens per second, in one run.

    .venv/bin/python benchmarks/recording_cost.py --json docs/data/recording_cost.json

Two rollout engines in one process, one with and one without recording, sample the same 128 requests of 32 tokens in
turn; medians over the rounds. Assembling the RolloutBatch is part of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rlhf_algos.models import resolve_model
from rlhf_algos.rollout.assembly import ScoredResponse, assemble
from rlhf_algos.rollout.engine import GenerationRequest
from rlhf_algos.rollout.router_layout import RouterLayout, router_layout
from rlhf_algos.rollout.sampling import SamplingSettings
from rlhf_algos.rollout.vllm_engine import VLLMEngine

REQUESTS, TOKENS, HEAD = 128, 32, 128
MOST_COST = 0.15


def sample(engine: VLLMEngine, settings: SamplingSettings, router: RouterLayout, round_number: int) -> float:
    """Tokens per second of one round."""
    started = time.perf_counter()
    for i in range(REQUESTS):
        engine.add(
            GenerationRequest(
                key=f"{round_number}-{i}",
                prompt_ids=[22 + i % 10, 23, 17, 24, 25, 35],
                max_tokens=TOKENS,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                num_logprobs=settings.record_head,
                # No end token: every response has all its tokens.
                stop_token_ids=(),
                seed=round_number * REQUESTS + i,
            )
        )
    finished = []
    while engine.num_running:
        finished += engine.step()
    responses = [ScoredResponse(number, number, g, 0.0, 0) for number, (_, g) in enumerate(finished)]
    batch = assemble(responses, settings, router=router, settings=None)
    return batch.num_response_tokens / (time.perf_counter() - started)


def main() -> int:
    """Alternates and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model = resolve_model("rlhf_algos/tiny-moe")
    router = router_layout(model, trust_remote_code=False)
    options = {"dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True, "generation_config": "vllm"}
    variants = {
        "nothing": SamplingSettings(max_response_tokens=TOKENS),
        "head and routes": SamplingSettings(max_response_tokens=TOKENS, record_head=HEAD, record_routes=True),
    }
    engines = {
        name: VLLMEngine(model, options, record_routes=settings.record_routes) for name, settings in variants.items()
    }
    speeds: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(-2, arguments.rounds):
        for name, settings in variants.items():
            speed = sample(engines[name], settings, router, round_number + 2)
            if round_number >= 0:
                speeds[name].append(speed)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    cost = 1 - medians["head and routes"] / medians["nothing"]
    for name, value in medians.items():
        print(f"{name:16s} {value:8.0f} tokens/s (median of {arguments.rounds})")
    print(f"cost {cost:.1%} (at most {MOST_COST:.0%}): {'PASS' if cost <= MOST_COST else 'MISS'}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"tokens_per_second": medians, "cost": cost}, indent=1))
    return 0 if cost <= MOST_COST else 1


if __name__ == "__main__":
    sys.exit(main())
