"""Statistics over trained tokens that survive splitting into micro-batches and ranks.

A mean of means over unequal counts is wrong, so sums, counts and maxima are kept until everything is together.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import distributed

from rlhf_algos.learner.process_group import reduce_device


class TokenStatistics:
    """Accumulates sums, means and maxima over the trained tokens of one update."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._maxima: dict[str, torch.Tensor] = {}
        self._means: set[str] = set()

    def add_mean(
        self, name: str, values: torch.Tensor, mask: torch.Tensor, *, sample_ids: torch.Tensor | None = None
    ) -> None:
        """Adds values; the result `name` is their mean where `mask` is True, over all micro-batches and ranks.

        Args:
            name: of the mean.
            values: `[T]`.
            mask: `[T]` bool.
            sample_ids: `[T]` int64, response of each token, all of whose tokens are here: each response that has any
                then counts once, with its own mean. None counts each token once.
        """
        self._means.add(name)
        # A selection, not a product: values outside the mask may be anything.
        selected, count = values.detach()[mask].double(), mask.sum().double()
        if sample_ids is not None:
            _, of_token, lengths = torch.unique(sample_ids[mask], return_inverse=True, return_counts=True)
            selected, count = selected / lengths[of_token], torch.tensor(float(len(lengths)))
        self.add_sum(name, selected.sum())
        self.add_sum(f"{name}/count", count)

    def add_sum(self, name: str, value: torch.Tensor) -> None:
        """Adds a scalar to the sum `name`."""
        self._sums[name] = self._sums.get(name, torch.zeros((), dtype=torch.float64)) + value.detach().double()

    def add_max(self, name: str, value: torch.Tensor) -> None:
        """Raises the maximum `name` to a scalar."""
        value = value.detach().double()
        self._maxima[name] = torch.maximum(self._maxima[name], value) if name in self._maxima else value

    def reduce(self) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """Combines all ranks, which all call it. What a rank has not added, it has nothing to add to.

        Returns:
            The means by name (a name without any trained token is absent), and the remaining raw sums and maxima.
        """
        added = _of_all_ranks((set(self._sums), set(self._maxima), self._means))
        names_of_sums, names_of_maxima, names_of_means = (
            sorted(set().union(*names)) for names in zip(*added, strict=True)
        )
        sums = _all_reduce(self._sums, names_of_sums, distributed.ReduceOp.SUM, missing=0.0)
        maxima = _all_reduce(self._maxima, names_of_maxima, distributed.ReduceOp.MAX, missing=-math.inf)
        means = {}
        for name in names_of_means:
            total, count = sums.pop(name), sums.pop(f"{name}/count")
            if count > 0:
                means[name] = float(total / count)
        return means, sums | maxima


def _of_all_ranks(names: tuple[set[str], ...]) -> list[tuple[set[str], ...]]:
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return [names]
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, names)
    return gathered


def _all_reduce(
    values: dict[str, torch.Tensor],
    names: list[str],
    operation: distributed.ReduceOp.RedOpType,
    *,
    missing: float,
) -> dict[str, torch.Tensor]:
    if not names:
        return {}
    # By the names of all ranks: each has the same rows.
    absent = torch.tensor(missing, dtype=torch.float64)
    stacked = torch.stack([values.get(name, absent).cpu() for name in names])
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        stacked = stacked.to(reduce_device())
        distributed.all_reduce(stacked, op=operation)
        stacked = stacked.cpu()
    return dict(zip(names, stacked.unbind(), strict=True))
