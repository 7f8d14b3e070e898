"""Routing replay for mixture-of-experts models (MATH 6): which routes, how they reach the routers, rows."""

from rlhf_algos.routing_replay.adapters import (
    FoundRouter,
    RouterAdapter,
    find_routers,
    known_routers,
    register_router_adapter,
)
from rlhf_algos.routing_replay.checker import check_router_replay
from rlhf_algos.routing_replay.layers import model_without_weights, moe_layer_routes, moe_layers
from rlhf_algos.routing_replay.mismatch import route_mismatch
from rlhf_algos.routing_replay.replay import R2, R3, NoReplay, RouterReplay, make_router_replay
from rlhf_algos.routing_replay.replayer import RouteReplayer
from rlhf_algos.routing_replay.rows import join_routes, packed_routes, route_dtype
from rlhf_algos.routing_replay.scope import ReplayScope

__all__ = [
    "R2",
    "R3",
    "FoundRouter",
    "NoReplay",
    "ReplayScope",
    "RouteReplayer",
    "RouterAdapter",
    "RouterReplay",
    "check_router_replay",
    "find_routers",
    "join_routes",
    "known_routers",
    "make_router_replay",
    "model_without_weights",
    "moe_layer_routes",
    "moe_layers",
    "packed_routes",
    "register_router_adapter",
    "route_dtype",
    "route_mismatch",
]
