"""What a player asks of a sampler, whichever it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch


@dataclass
class Generation:
    """One sampled response, growing while it is generated.

    Attributes:
        prompt_ids: the prompt's tokens.
        token_ids: sampled tokens.
        logprobs: log q of each sampled token.
        head_ids, head_logprobs: one `[k]` array per token, in decreasing log q; empty lists if not recorded.
        route_rows: arrays `[positions, layers, experts]` in the order of positions.
        finish_reason: "stop" or "length" when it is done.
    """

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    head_ids: list[np.ndarray] = field(default_factory=list)
    head_logprobs: list[np.ndarray] = field(default_factory=list)
    route_rows: list[np.ndarray] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """What to sample: a prompt, how many tokens at most, how many head entries, and the noise."""

    key: str
    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    num_logprobs: int
    stop_token_ids: tuple[int, ...]
    seed: int


class Engine(Protocol):
    """A sampler that takes requests at any time and is driven step by step."""

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its response."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Of the model."""
        ...

    @property
    def num_running(self) -> int:
        """Requests that are not finished."""
        ...

    def add(self, request: GenerationRequest) -> None:
        """Queues a request; its tokens come out of `step`."""
        ...

    def step(self) -> list[tuple[str, Generation]]:
        """Goes on sampling; returns keys and generations of the requests that finished in this step."""
        ...

    def abort_all(self) -> None:
        """Drops every unfinished request."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replaces all weights by tensors under checkpoint names.

        Raises:
            RuntimeError: if requests are running.
            ValueError: if they are not whole. The engine must not be used then; a whole set can still be loaded.
        """
        ...
