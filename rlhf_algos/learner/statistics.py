"""Statistics over trained tokens that survive splitting into micro-batches and ranks.

A mean of means over unequal counts is wrong, so sums, counts and maxima are kept until everything is together.
"""

from __future__ import annotations

import torch
from torch import distributed

from rlhf_algos.learner.process_group import reduce_device


class TokenStatistics:
    """Accumulates sums, means and maxima over the trained tokens of one update."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._maxima: dict[str, torch.Tensor] = {}
        self._means: set[str] = set()

    def add_mean(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Adds `[T]` values; the result `name` is their mean where `mask` is True, over all micro-batches and ranks."""
        self._means.add(name)
        # A selection, not a product: values outside the mask may be anything.
        self.add_sum(name, values.detach()[mask].double().sum())
        self.add_sum(f"{name}/count", mask.sum().double())

    def add_sum(self, name: str, value: torch.Tensor) -> None:
        """Adds a scalar to the sum `name`."""
        self._sums[name] = self._sums.get(name, torch.zeros((), dtype=torch.float64)) + value.detach().double()

    def add_max(self, name: str, value: torch.Tensor) -> None:
        """Raises the maximum `name` to a scalar."""
        value = value.detach().double()
        self._maxima[name] = torch.maximum(self._maxima[name], value) if name in self._maxima else value

    def reduce(self) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """Combines all ranks. Every rank must have added the same names.

        Returns:
            The means by name (a name without any trained token is absent), and the remaining raw sums and maxima.
        """
        sums = _all_reduce(self._sums, distributed.ReduceOp.SUM)
        maxima = _all_reduce(self._maxima, distributed.ReduceOp.MAX)
        means = {}
        for name in sorted(self._means):
            total, count = sums.pop(name), sums.pop(f"{name}/count")
            if count > 0:
                means[name] = float(total / count)
        return means, sums | maxima


def _all_reduce(values: dict[str, torch.Tensor], operation: distributed.ReduceOp.RedOpType) -> dict[str, torch.Tensor]:
    if not values:
        return {}
    names = sorted(values)
    stacked = torch.stack([values[name].cpu() for name in names])
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        stacked = stacked.to(reduce_device())
        distributed.all_reduce(stacked, op=operation)
        stacked = stacked.cpu()
    return dict(zip(names, stacked.unbind(), strict=True))
