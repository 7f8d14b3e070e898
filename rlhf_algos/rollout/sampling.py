"""What is sampled from: one validated set of settings for the sampler and the trainer alike."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are sampled and what is recorded about them.

    Attributes:
        temperature: divides the logits, of the sampler and of the trainer; 0 means greedy (evaluation only).
        top_p: keeps the smallest set of tokens with at least this mass; 1 keeps all.
        top_k: keeps the k most probable tokens; 0 keeps all.
        max_response_tokens: a response that reaches it is truncated.
        stop_token_ids: end-of-sequence ids besides those of the model's generation config.
        record_head: number of most probable tokens recorded per position with their log q; 0 records none.
        record_routes: record the experts chosen at each position.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_response_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()
    record_head: int = 0
    record_routes: bool = False

    def __post_init__(self) -> None:
        """Checks the combination; types and ranges are declared with the options of the algorithms."""
        if self.truncates and self.record_head:
            raise ValueError(
                f"sampling(record_head={self.record_head}) records the head of the full distribution, but top_p="
                f"{self.top_p}, top_k={self.top_k} sample from a truncated one, whose whole support is recorded "
                "anyway. Set record_head=0, or top_p=1.0 and top_k=0."
            )

    @property
    def truncates(self) -> bool:
        """Whether tokens are removed before sampling; then the support is recorded and the trainer renormalizes."""
        return self.top_p < 1.0 or self.top_k > 0

    def greedy(self) -> SamplingSettings:
        """The same settings, taking the most probable token each time; it has all mass, so no head is recorded."""
        return replace(self, temperature=0.0, top_p=1.0, top_k=0, record_head=0)

    def with_head(self, size: int) -> SamplingSettings:
        """The same settings, recording a head of `size` tokens."""
        return replace(self, record_head=size)

    def for_training(self) -> None:
        """Raises ValueError if these settings can't produce data to train on."""
        if self.temperature == 0.0:
            raise ValueError(
                "sampling(temperature=0.0) is greedy: every member of a group is the same and log q is 0. "
                "Use a positive temperature for training; evaluation reports greedy accuracy by itself."
            )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able values, stored with every batch."""
        return asdict(self) | {"stop_token_ids": list(self.stop_token_ids)}


def request_seed(seed: int, *path: int) -> int:
    """A seed of 63 bits for one request, a function of the run's seed and of what the request is.

    Independent of which rollout actor samples it, of batching and of restarts: the same request gets the same
    noise, and no two requests share theirs.
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
