"""Logits of a language-model head, one slice of the vocabulary at a time, and the way back."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor


class ProjectionSettings(NamedTuple):
    """What shapes the logits, besides the tensors."""

    temperature: float
    chunk_size: int


class ChunkedProjection:
    """Computes the logits of one vocabulary slice after another into the same memory."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, settings: ProjectionSettings) -> None:
        self.hidden, self.weight, self.bias, self.settings = hidden, weight, bias, settings
        self.dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        self.product_dtype = product_dtype_of(hidden.dtype, hidden.device.type)
        self.factor = hidden.to(self.product_dtype)
        self.chunk_size = min(settings.chunk_size, weight.shape[0])
        self.is_whole = self.chunk_size == weight.shape[0]

    def weight_slice(self, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` of the weight, ready for a matrix product."""
        return self.weight[start:stop].to(self.product_dtype)

    def walk(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the start of each slice and its logits `[T, slice]`, valid until the next step."""
        tokens, vocabulary = self.hidden.shape[0], self.weight.shape[0]
        size = self.chunk_size
        memory = torch.empty(tokens * size, dtype=self.dtype, device=self.hidden.device)
        for start in range(0, vocabulary, size):
            stop = min(start + size, vocabulary)
            chunk = memory[: tokens * (stop - start)].view(tokens, stop - start)
            factor = self.weight_slice(start, stop).t()
            if self.product_dtype == self.dtype:
                torch.mm(self.factor, factor, out=chunk)
            else:
                chunk.copy_(self.factor @ factor)
            if self.bias is not None:
                chunk.add_(self.bias[start:stop])
            if self.settings.temperature != 1.0:
                chunk.div_(self.settings.temperature)
            yield start, chunk


class ProjectionGradients:
    """Collects the gradients of the inputs slice by slice; those not required are never computed."""

    def __init__(self, logits: ChunkedProjection, hidden: bool, weight: bool, bias: bool) -> None:
        self.logits = logits
        self.hidden = torch.zeros_like(logits.hidden, dtype=logits.dtype) if hidden else None
        self.weight = torch.empty_like(logits.weight) if weight else None
        self.bias = torch.empty_like(logits.bias) if bias and logits.bias is not None else None

    def add(self, start: int, gradient: Tensor) -> None:
        """Add the gradient `[T, slice]` of the tempered logits from `start` on."""
        logits, stop = self.logits, start + gradient.shape[1]
        if logits.settings.temperature != 1.0:
            gradient.div_(logits.settings.temperature)
        if self.bias is not None:
            self.bias[start:stop] = gradient.sum(0)
        factor = gradient.to(logits.product_dtype)
        if self.hidden is not None:
            rows = logits.weight_slice(start, stop)
            if factor.dtype == self.hidden.dtype:
                self.hidden.addmm_(factor, rows)
            else:
                self.hidden.add_(factor @ rows)
        if self.weight is not None:
            if factor.dtype == self.weight.dtype:
                torch.mm(factor.t(), logits.factor, out=self.weight[start:stop])
            else:
                self.weight[start:stop] = factor.t() @ logits.factor

    def finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of hidden, weight and bias, each in its input's dtype; None where not required."""
        hidden = None if self.hidden is None else self.hidden.to(self.logits.hidden.dtype)
        return hidden, self.weight, self.bias


def product_dtype_of(dtype: torch.dtype, device_type: str) -> torch.dtype:
    """The dtype that products of matrices of `dtype` are computed in, without losing precision or much time."""
    if device_type != "cpu" or dtype in (torch.float32, torch.float64):
        return dtype
    return dtype if dtype == torch.bfloat16 and _cpu_has_bfloat16_products() else torch.float32


@cache
def _cpu_has_bfloat16_products() -> bool:
    features = torch.cpu.get_capabilities()
    return bool(features.get("avx512_bf16") or features.get("amx_bf16") or features.get("bf16"))
