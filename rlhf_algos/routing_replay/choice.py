"""Replacing the result of `torch.topk` while one router runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Maps the live choice `[tokens, top_k]` to the experts to use.
Choose = Callable[[Tensor], Tensor]


class ReplacedTopK(TorchFunctionMode):
    """While it is entered, the `torch.topk` that chooses experts returns other ones, with their own scores.

    The scores are gathered from the same input, so their gradient is that of `topk` on these experts. A function mode
    belongs to its thread and its `with` block: no other module, model or thread sees it.

    Args:
        choose: maps the live choice `[tokens, top_k]` to the experts to use.
        is_choice: tells from the input and k of a call whether it is the one.
    """

    def __init__(self, choose: Choose, is_choice: Callable[[Tensor, int], bool]) -> None:
        super().__init__()
        self._choose = choose
        self._is_choice = is_choice

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Passes every call through but one."""
        kwargs = kwargs or {}
        if func is torch.topk or func is torch.Tensor.topk:
            scores, k, dim, options = _topk_arguments(*args, **kwargs)
            if dim in (-1, scores.dim() - 1) and self._is_choice(scores, k):
                with torch.no_grad():
                    live = torch.topk(scores, k, **options).indices
                # Gathered also if nothing is replaced: a recomputation must save the same tensors as its forward.
                experts = self._choose(live)
                return torch.return_types.topk((scores.gather(-1, experts), experts))
        return func(*args, **kwargs)


def _topk_arguments(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, **others: Any
) -> tuple[Tensor, int, int, dict[str, Any]]:
    return input, k, dim, {"dim": dim, "largest": largest, "sorted": sorted, **others}
