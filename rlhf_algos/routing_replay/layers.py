"""From an engine's array of routes to the mixture-of-experts layers of the trainer's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from rlhf_algos.routing_replay.adapters import find_routers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def model_without_weights(config: PretrainedConfig, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model's modules without memory for their weights, to find its routers."""
    # Takes seconds to import, and configurations import this package.
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def moe_layers(config: PretrainedConfig, *, trust_remote_code: bool = False) -> tuple[int, ...]:
    """Indices of the decoder layers that have a router, from a copy of the model without weights.

    Args:
        config: of a causal language model.
        trust_remote_code: run code that ships with the model.

    Raises:
        ValueError: the model is dense or its router is unknown (see `find_routers`), or a router's name does not
            contain exactly one number.
    """
    routers = find_routers(model_without_weights(config, trust_remote_code=trust_remote_code))
    unnamed = [router.name for router in routers if router.decoder_layer is None]
    if unnamed:
        raise ValueError(f"The name {unnamed[0]!r} does not tell the decoder layer of this router.")
    return tuple(router.decoder_layer for router in routers if router.decoder_layer is not None)


def moe_layer_routes(engine_routes: np.ndarray, layers: Sequence[int], num_decoder_layers: int) -> np.ndarray:
    """The mixture-of-experts layers of an engine's routes.

    vLLM 0.30 writes the choice of decoder layer i to column i of an array over *all* decoder layers and leaves the
    columns of dense layers 0. An array that has only the mixture-of-experts layers is returned as it is.

    Args:
        engine_routes: `[positions, layers, E]` integers.
        layers: increasing indices of the decoder layers with a router, as from `moe_layers` or
            `RouteReplayer.decoder_layers`.
        num_decoder_layers: of the model, dense ones included.

    Returns:
        `[positions, L, E]`, with the dtype of the input.

    Raises:
        ValueError: neither number of layers fits, or a dense layer's column is not 0: the columns then mean something
            else than assumed.
    """
    found = engine_routes.shape[1] if engine_routes.ndim == 3 else None
    if found == len(layers):
        return engine_routes
    if found != num_decoder_layers:
        raise ValueError(
            f"The engine's routes have shape {engine_routes.shape}; expected [positions, layers, experts] with "
            f"{num_decoder_layers} decoder layers or {len(layers)} mixture-of-experts layers."
        )
    dense = np.setdiff1d(np.arange(num_decoder_layers), layers)
    written = dense[engine_routes[:, dense].any(axis=(0, 2))]
    if len(written):
        raise ValueError(
            f"The engine recorded routes for decoder layer {int(written[0])}, which is dense in the trainer's model "
            f"(its routers are in layers {list(layers)}): the two sides do not run the same model, or the engine "
            "orders its layers in another way."
        )
    return engine_routes[:, list(layers)]
