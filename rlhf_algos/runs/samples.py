"""Responses that are kept to be shown, with both policies' log-probabilities of their tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_algos.runs.json_files import read_json_lines

SAMPLES = "samples.jsonl"
SAMPLE_KEYS = ("prompt", "reward", "tokens", "rollout_logprobs", "old_logprobs")


@dataclass(frozen=True)
class Sample:
    """A response with both policies' log-probabilities of its tokens."""

    iteration: int
    prompt: str
    reward: float
    tokens: tuple[str, ...]
    rollout_logprobs: tuple[float, ...]
    old_logprobs: tuple[float, ...]


def read_samples(folder: Path) -> tuple[tuple[Sample, ...], tuple[str, ...]]:
    """The shown responses of a folder, and notes; both empty if there is no such file.

    Raises:
        ValueError: if a line is damaged; names the file and the line.
    """
    file = folder / SAMPLES
    if not file.exists():
        return (), ()
    lines = read_json_lines(file)
    samples = []
    for number, line in lines.objects:
        fault = sample_fault(line)
        if fault:
            raise ValueError(f"{file}, line {number}: {fault}.")
        samples.append(
            Sample(
                iteration=int(line["iteration"]),
                prompt=line["prompt"],
                reward=float(line["reward"]),
                tokens=tuple(line["tokens"]),
                rollout_logprobs=tuple(line["rollout_logprobs"]),
                old_logprobs=tuple(line["old_logprobs"]),
            )
        )
    return tuple(samples), tuple(lines.cut_note(file, "response"))


def sample_fault(line: Mapping[str, Any]) -> str | None:
    """What is wrong with one shown response, or None."""
    missing = [key for key in ("iteration", *SAMPLE_KEYS) if key not in line]
    if missing:
        return f"{', '.join(missing)} missing"
    if not isinstance(line["prompt"], str):
        return "prompt is not text"
    if not _are_numbers([line["iteration"], line["reward"]]):
        return "iteration and reward must be finite numbers"
    tokens, logprobs = line["tokens"], {key: line[key] for key in ("rollout_logprobs", "old_logprobs")}
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return "tokens is not a list of text"
    for key, values in logprobs.items():
        if not isinstance(values, list) or not _are_numbers(values):
            return f"{key} is not a list of finite numbers"
        if len(values) != len(tokens):
            return f"{len(tokens)} tokens, but {len(values)} {key}"
    return None


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
