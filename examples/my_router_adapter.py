"""Routing replay for a router of one's own: what has to be written, and how to check it.

    python examples/my_router_adapter.py

A learner runs in a process of its own, which has to register the adapter too. Put both into a module that is installed
there, with a subclass of R3 beside them, and name that in the configuration:

    class MyR3(R3):
        pass

    config.training(router_replay="my_package.my_router.MyR3")
"""

import torch
from torch import Tensor, nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from rlhf_algos.routing_replay import RouterAdapter, check_router_replay, register_router_adapter


class CosineRouter(nn.Module):
    """Compares a token with a direction per expert; chooses with a bias, gates without it."""

    def __init__(self, width: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(experts, width))
        self.bias = nn.Buffer(torch.randn(experts) * 0.1)
        self.chosen = chosen

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores `[tokens, experts]`, gates and experts `[tokens, chosen]`."""
        hidden = nn.functional.normalize(hidden.reshape(-1, hidden.shape[-1]), dim=-1)
        scores = hidden @ nn.functional.normalize(self.directions, dim=-1).T
        experts = torch.topk(scores + self.bias, self.chosen).indices
        return scores, scores.gather(-1, experts).softmax(-1), experts


# This is all. A router with attributes `top_k` and `num_experts` needs no subclass: RouterAdapter(TheirRouter) does.
class CosineRouterAdapter(RouterAdapter):
    """Says under which names the router keeps its sizes."""

    def top_k(self, router: nn.Module) -> int:
        """Experts per token."""
        return router.chosen  # type: ignore[return-value]

    def num_experts(self, router: nn.Module) -> int:
        """Experts to choose from."""
        return len(router.directions)  # type: ignore[arg-type]


def make_model() -> Qwen3MoeForCausalLM:
    """A small Qwen3-MoE with our router in every layer."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.2,
    )
    model = Qwen3MoeForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp.gate = CosineRouter(config.hidden_size, config.num_experts, config.num_experts_per_tok)
    return model


def main() -> None:
    """Show that the model is refused without the adapter, and that it keeps every promise with it."""
    model = make_model()
    try:
        check_router_replay(model)
    except ValueError as error:
        print("without an adapter:", error)
    register_router_adapter(CosineRouterAdapter(CosineRouter))
    check_router_replay(model)
    print("with it, replay on CosineRouter keeps every promise")


if __name__ == "__main__":
    main()
