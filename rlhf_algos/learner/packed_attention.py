"""Causal attention over packed sequences, registered with transformers as an attention implementation.

Hidden states, projections and experts run on the packed tokens `[1, N, ...]`; only the attention itself sees a
`[sequences, longest]` layout. Its padding stands to the right of each sequence, so a plain causal mask already
hides it, and the padded rows are dropped afterwards. Cost: `sequences * longest^2` instead of `N^2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface

PACKED_ATTENTION = "rlhf_algos_packed"


@dataclass(frozen=True)
class PackingIndex:
    """Where each packed token stands in the padded layout, and the reverse.

    Attributes:
        to_padded: `[S * longest]` int64, for every padded place a packed row (row 0 for padding).
        to_packed: `[N]` int64, for every packed row its padded place.
        num_sequences: S.
        longest: tokens of the longest sequence.
    """

    to_padded: torch.Tensor
    to_packed: torch.Tensor
    num_sequences: int
    longest: int


def packing_index(lengths: torch.Tensor) -> PackingIndex:
    """Builds the index for sequences of the given `[S]` int64 lengths."""
    num_sequences, longest = len(lengths), int(lengths.max())
    starts = torch.cumsum(lengths, 0) - lengths
    columns = torch.arange(longest, device=lengths.device)
    inside = columns < lengths[:, None]
    rows = torch.where(inside, starts[:, None] + columns, 0)
    return PackingIndex(rows.flatten(), inside.flatten().nonzero()[:, 0], num_sequences, longest)


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packing: PackingIndex,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention of each packed sequence with itself.

    Args:
        module: the attention layer, unused.
        query: `[1, heads, N, head_dim]`.
        key, value: `[1, key_value_heads, N, head_dim]`.
        attention_mask: must be None; causality is built in.
        packing: from `packing_index`, handed through the model's keyword arguments.
        scaling: factor on the dot products; None for `head_dim ** -0.5`.
        dropout: attention dropout probability.
        kwargs: what other implementations understand; a sliding window is refused by `attention_for`.

    Returns:
        `[1, N, heads, head_dim]` and None (no attention weights).
    """
    if attention_mask is not None:
        raise ValueError("Packed attention takes no attention mask: pass packed sequences without padding.")

    def padded(states: torch.Tensor) -> torch.Tensor:
        heads, _, width = states.shape[1:]
        gathered = states[0].index_select(1, packing.to_padded)
        return gathered.view(heads, packing.num_sequences, packing.longest, width).transpose(0, 1)

    output = nn.functional.scaled_dot_product_attention(
        padded(query),
        padded(key),
        padded(value),
        dropout_p=dropout,
        is_causal=True,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    rows = output.transpose(1, 2).flatten(0, 1).index_select(0, packing.to_packed)
    return rows[None], None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Tells transformers that this implementation needs no mask."""


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, _no_mask)


# transformers 5.24 makes the masks of these without looking at position ids, and their attention has learned sinks.
_NEEDS_OWN_MASKS = ("gpt_oss",)


def attention_for(config: PretrainedConfig) -> str:
    """The attention implementation for a model: ours, or transformers' own where ours can't follow.

    Sliding windows and attention sinks need a mask of their own; transformers' "eager" path builds it for packed
    sequences from the position ids, or is given it (`attention_arguments`).
    """
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    special = getattr(config, "sliding_window", None) is not None or layer_types != {"full_attention"}
    return "eager" if special or config.model_type in _NEEDS_OWN_MASKS else PACKED_ATTENTION


def attention_arguments(config: PretrainedConfig, lengths: torch.Tensor) -> dict[str, Any]:
    """Keyword arguments of the model with which packed sequences don't see each other.

    Args:
        config: of the model, loaded with `attention_for(config)`.
        lengths: `[S]` int64, tokens of each sequence.
    """
    if config._attn_implementation == PACKED_ATTENTION:
        return {"packing": packing_index(lengths)}
    if config.model_type not in _NEEDS_OWN_MASKS:
        return {}
    sample = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    row = torch.arange(len(sample), device=lengths.device)
    distance = row[:, None] - row
    full = (sample[:, None] == sample) & (distance >= 0)
    window = config.sliding_window if config.sliding_window is not None else len(sample)
    lowest = torch.finfo(config.dtype or torch.float32).min
    masks = {"full_attention": full, "sliding_attention": full & (distance < window)}
    return {"attention_mask": {name: (~mask)[None, None].to(config.dtype) * lowest for name, mask in masks.items()}}
