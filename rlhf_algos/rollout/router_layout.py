"""Where a model has routers."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import AutoConfig

from rlhf_algos.routing_replay import RouteReplayer, model_without_weights


@dataclass(frozen=True)
class RouterLayout:
    """Where a model has routers.

    Attributes:
        moe_layers: decoder layers with a router.
        num_decoder_layers: all of them.
        num_experts: to choose from, which decides how routes are stored.
    """

    moe_layers: tuple[int, ...]
    num_decoder_layers: int
    num_experts: int


def router_layout(model_path: str, *, trust_remote_code: bool) -> RouterLayout:
    """The layout of a model that is not loaded."""
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    routers = RouteReplayer(model_without_weights(config, trust_remote_code=trust_remote_code))
    return RouterLayout(routers.decoder_layers, config.num_hidden_layers, routers.num_experts)
