"""A sampler made worse on purpose, for experiments and tests.

In production the sampler differs from the trainer because of precision, quantization or old weights. On a small
machine those differences are small; here a user creates a large one, of a known kind and size, and sees what a
correction does about it. Nothing of this is on by default, and a run that uses it says so in its log.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

# What a weight-only quantizer of linear layers leaves alone: embeddings, output head and routers (and all vectors).
_NOT_ROUNDED = re.compile(r"(embed_tokens|lm_head)\.weight$|(mlp\.gate|block_sparse_moe\.gate|router)\.weight$")


@dataclass(frozen=True)
class MismatchInjection:
    """What is done to the weights between the trainer and the rollout actors.

    Attributes:
        weight_noise: standard deviation of normal noise added to every tensor, as a fraction of the tensor's root
            mean square. The noise of a tensor is the same in every version: a systematic error, like a kernel's.
        rounding_bits: round every matrix of the decoder layers to 2**bits - 1 levels per output channel (symmetric,
            round to nearest), as a weight-only quantizer does; routers, embeddings and the output head stay. None
            rounds nothing.
        lag: the actors sample with weights that are this many versions old.
    """

    weight_noise: float = 0.0
    rounding_bits: int | None = None
    lag: int = 0

    @property
    def changes_weights(self) -> bool:
        """Whether the actors' weights differ from those of any version of the trainer."""
        return self.weight_noise > 0 or self.rounding_bits is not None

    @property
    def active(self) -> bool:
        """Whether the sampler is made worse in any way."""
        return self.changes_weights or self.lag > 0

    def sampler_version(self, trainer_version: int) -> int:
        """The version that actors sample with when the trainer is at `trainer_version`."""
        return max(0, trainer_version - self.lag)

    def apply(self, weights: Iterable[tuple[str, torch.Tensor]], *, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights a sampler gets; noise first, then rounding. New tensors, the given ones stay as they are.

        Args:
            weights: tensors under checkpoint names.
            seed: of the run; with the name it decides a tensor's noise.
        """
        for name, tensor in weights:
            if self.weight_noise > 0:
                tensor = _with_noise(tensor, self.weight_noise, f"{seed}/{name}")
            if self.rounding_bits is not None and tensor.dim() >= 2 and not _NOT_ROUNDED.search(name):
                tensor = round_per_channel(tensor, self.rounding_bits)
            yield name, tensor

    def as_dict(self) -> dict[str, Any]:
        """JSON-able values, stored with every batch."""
        return {"weight_noise": self.weight_noise, "rounding_bits": self.rounding_bits, "lag": self.lag}


NO_INJECTION = MismatchInjection()


def round_per_channel(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """`weight` rounded to nearest on a symmetric grid of `2**bits - 1` levels per output channel.

    With `m = 2**(bits - 1) - 1` and the channel's `s = max |w| / m`, an entry becomes `s * round(w / s)`.

    Args:
        weight: `[output channels, ...]`, any floating dtype.
        bits: 2 to 8.

    Returns:
        The same shape and dtype; computed in float32.
    """
    levels = 2 ** (bits - 1) - 1
    rows = weight.float().flatten(1)
    step = rows.abs().amax(dim=1, keepdim=True) / levels
    # A channel of zeros has no step, and stays zero.
    rounded = torch.where(step > 0, (rows / step.clamp(min=torch.finfo(torch.float32).tiny)).round() * step, rows)
    return rounded.view_as(weight).to(weight.dtype)


def _with_noise(tensor: torch.Tensor, size: float, key: str) -> torch.Tensor:
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
    scale = size * tensor.float().square().mean().sqrt()
    return (tensor.float() + scale * noise).to(tensor.dtype)
