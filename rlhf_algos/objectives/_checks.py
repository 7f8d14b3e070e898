"""Checks of rank, dtype and shape that every objective makes in its first lines."""

import torch
from torch import Tensor

# Half precision rounds the tail of a log-probability by several hundredths: it is refused, not accepted with
# a bias.
PRECISE_DTYPES = (torch.float32, torch.float64)


def require_flat(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise unless `tensor` has one dimension and one of `dtypes`."""
    require_rank(name, tensor, 1)
    require_dtype(name, tensor, dtypes)


def require_rank(name: str, tensor: Tensor, rank: int) -> None:
    """Raise `ValueError` unless `tensor` has `rank` dimensions."""
    if tensor.dim() != rank:
        raise ValueError(f"{name} must have {rank} dimension(s); got shape {tuple(tensor.shape)}")


def require_dtype(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise `TypeError` unless the dtype of `tensor` is one of `dtypes`."""
    if tensor.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} must be {expected}; got {tensor.dtype}")


def require_same_shape(**tensors: Tensor) -> None:
    """Raise `ValueError` unless all shapes are that of the first: nothing broadcasts in silence."""
    (first_name, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != first.shape:
            raise ValueError(
                f"{name} must have the shape of {first_name}: expected {tuple(first.shape)}, got {tuple(tensor.shape)}"
            )


def require_range(name: str, indices: Tensor, size: int) -> None:
    """Raise `IndexError` unless every index lies in `[0, size)`."""
    if indices.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(indices))
    if low < 0 or high >= size:
        raise IndexError(f"{name} must lie in [0, {size}); got values from {low} to {high}")
