"""Responses with the mismatch of each token, ready for the page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlhf_algos.report.groups import Group
from rlhf_algos.runs.samples import Sample

#: Lower ends of the colour steps; below the first there is no colour.
STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)
#: Responses shown per group.
SHOWN = 6


@dataclass(frozen=True)
class ShownToken:
    """A token, the step of its colour (0 = none) and what its tooltip says."""

    text: str
    step: int
    about: str


@dataclass(frozen=True)
class ShownSample:
    """A response: its tokens, and its mean and largest mismatch in words."""

    sample: Sample
    tokens: tuple[ShownToken, ...]
    summary: str


@dataclass(frozen=True)
class ShownGroup:
    """The responses of a group that are shown, out of how many, and from which iteration and seed."""

    name: str
    iteration: int
    seed: str
    recorded: int
    samples: tuple[ShownSample, ...]


def legend() -> list[tuple[int, str]]:
    """Each colour step and the range it stands for."""
    ranges = [f"below {STEPS[0]}", *(f"{a:g} to {b:g}" for a, b in pairwise(STEPS))]
    return list(enumerate([*ranges, f"{STEPS[-1]:g} and above"]))


def shown_groups(groups: Sequence[Group]) -> list[ShownGroup]:
    """Of each group the first responses of the last recorded iteration, from the first run that recorded any."""
    shown = []
    for group in groups:
        run = next((run for run in group.runs if run.samples), None)
        if run is None:
            continue
        iteration = max(sample.iteration for sample in run.samples)
        last = [sample for sample in run.samples if sample.iteration == iteration]
        samples = tuple(_shown(sample) for sample in last[:SHOWN])
        shown.append(ShownGroup(group.name, iteration, str(run.seed), len(last), samples))
    return shown


def _shown(sample: Sample) -> ShownSample:
    sizes = [abs(p - q) for p, q in zip(sample.old_logprobs, sample.rollout_logprobs, strict=True)]
    tokens = tuple(
        ShownToken(
            text=token.replace("\n", "↵\n"),
            step=bisect_right(STEPS, size),
            about=f"|log p0 - log q| = {size:.3g}, log p0 = {p:.4g}, log q = {q:.4g}",
        )
        for token, size, p, q in zip(sample.tokens, sizes, sample.old_logprobs, sample.rollout_logprobs, strict=True)
    )
    if not sizes:
        return ShownSample(sample, tokens, "an empty response")
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    count = f"{len(sizes)} tokens" if len(sizes) > 1 else "1 token"
    return ShownSample(
        sample,
        tokens,
        f"{count}, mean mismatch {sum(sizes) / len(sizes):.3g}, largest {sizes[largest]:.3g} at token {largest + 1}",
    )
