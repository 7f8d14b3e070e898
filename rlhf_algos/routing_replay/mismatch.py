"""How often the trainer would have chosen other experts than the ones recorded."""

from torch import Tensor


def route_mismatch(recorded: Tensor, live: Tensor) -> Tensor:
    """Where the recorded set of experts differs from the live one (MATH 6); the order within a row means nothing.

    The metric `route_mismatch` is the mean over trained tokens and layers, at the rows that predict the trained tokens:
    `route_mismatch(recorded, live)[predicting[loss_mask]].double().mean()`.

    Args:
        recorded: `[N, L, E]` integers; a row of -1 was not recorded.
        live: `[N, L, E]` integers, the trainer's own choice.

    Returns:
        `[N, L]` bool, False where nothing was recorded.

    Gradient: none.

    Raises:
        ValueError: the shapes differ or have not three dimensions.
    """
    if recorded.dim() != 3 or recorded.shape != live.shape:
        raise ValueError(
            f"recorded and live must have the same shape [tokens, layers, experts]; got {tuple(recorded.shape)} and "
            f"{tuple(live.shape)}"
        )
    first = recorded.long().to(live.device).sort(dim=-1).values
    second = live.long().sort(dim=-1).values
    return (first != second).any(dim=-1) & (first[..., -1] >= 0)
