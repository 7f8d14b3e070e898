"""Which models can be replayed, and how another router is made known."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, PhimoeConfig, PhimoeForCausalLM

from rlhf_algos.routing_replay import (
    RouterAdapter,
    RouteReplayer,
    adapters,
    check_router_replay,
    find_routers,
    known_routers,
    register_router_adapter,
)
from tests.routing_replay.models import ARCHITECTURES, TOKENS, make_model, replayed_logprobs, routes_for

SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(adapters, "ADAPTERS", dict(adapters.ADAPTERS))


class Router(nn.Module):
    """Chooses by the largest absolute logit, under names of its own."""

    def __init__(self, experts=4, chosen=2, width=16):
        super().__init__()
        self.linear = nn.Linear(width, experts)
        self.experts_per_token, self.expert_count = chosen, experts

    def forward(self, hidden):
        logits = self.linear(hidden.reshape(-1, hidden.shape[-1]))
        values, indices = logits.abs().topk(self.experts_per_token)
        return logits, values / values.sum(-1, keepdim=True), indices


class Adapter(RouterAdapter):
    def top_k(self, router):
        return router.experts_per_token

    def num_experts(self, router):
        return router.expert_count


def model_with(make_router):
    torch.manual_seed(1)
    model = make_model()
    for layer in model.model.layers[1:]:
        layer.mlp.gate = make_router()
    return model


def test_all_architectures_are_known():
    known = {path.split(".")[2] for path in known_routers()}
    assert known == set(ARCHITECTURES)


def test_a_dense_model_is_refused():
    model = LlamaForCausalLM(LlamaConfig(**SMALL, **HEADS))
    message = (
        r"^LlamaForCausalLM is a dense model: it has no router, so there are no routes to replay\. "
        r"Set router_replay='none', or train a mixture-of-experts model\.$"
    )
    for refuse in (find_routers, RouteReplayer, check_router_replay):
        with pytest.raises(ValueError, match=message):
            refuse(model)


def test_an_unknown_architecture_is_refused():
    model = PhimoeForCausalLM(PhimoeConfig(**SMALL, **HEADS, num_local_experts=4, num_experts_per_tok=2))
    message = (
        r"^PhimoeForCausalLM is a mixture-of-experts model with a router that routing replay does not know "
        r"\(model\.layers\.0\.mlp: \w+\)\. Register an adapter for it "
        r"\(rlhf_algos\.routing_replay\.register_router_adapter, shown in examples/my_router_adapter\.py\), or set "
        r"router_replay='none'\. Known routers: DeepseekV3TopkRouter, .*Qwen3MoeTopKRouter\.$"
    )
    with pytest.raises(ValueError, match=message):
        RouteReplayer(model)


def test_experts_that_only_the_configuration_tells_of():
    model = nn.Linear(2, 2)
    model.config = MixtralConfig()
    with pytest.raises(ValueError, match=r"Linear is a mixture-of-experts model .* does not know\. Register"):
        find_routers(model)


def test_one_unknown_router_among_known_ones_is_refused():
    model = make_model()
    model.model.layers[2].mlp.gate = Router()
    with pytest.raises(ValueError, match=r"does not know \(model\.layers\.2\.mlp: Qwen3MoeSparseMoeBlock\)"):
        RouteReplayer(model)


def test_layers_of_different_size_are_refused():
    model = make_model()
    model.model.layers[2].mlp.gate.top_k = 1
    with pytest.raises(ValueError, match=r"\(num_experts, top_k\) in \[\(4, 1\), \(4, 2\)\]"):
        RouteReplayer(model)


@pytest.mark.parametrize("by_path", [False, True])
def test_an_adapter_makes_a_router_known(registry, by_path):
    register_router_adapter(Adapter(f"{__name__}.Router" if by_path else Router))
    model = model_with(Router)
    check_router_replay(model)
    assert f"{__name__}.Router" in known_routers()
    first, second = (
        replayed_logprobs(model, RouteReplayer(model), TOKENS, routes_for("qwen3_moe", 14, seed=seed))
        for seed in (0, 1)
    )
    assert float((first - second).detach().abs().max()) > 0.05


def test_a_subclass_of_a_known_router_is_known(registry):
    class Other(Router):
        pass

    register_router_adapter(Adapter(Router))
    check_router_replay(model_with(Other))


def test_registration_is_checked(registry):
    with pytest.raises(TypeError, match="register_router_adapter takes a RouterAdapter, got <class"):
        register_router_adapter(Router)
    register_router_adapter(Adapter(Router))
    with pytest.raises(ValueError, match=r"Router has an adapter already; pass replace=True"):
        register_router_adapter(Adapter(Router))
    assert register_router_adapter(Adapter(Router), replace=True).router_class is Router


def test_a_replaced_adapter_acts_on_a_model_that_had_the_old_one(registry):
    model = make_model()
    RouteReplayer(model)

    class Counting(RouterAdapter):
        def run(self, router, forward, choose, args, kwargs):
            calls.append(1)
            return super().run(router, forward, choose, args, kwargs)

    calls = []
    path = next(path for path in known_routers() if "Qwen3" in path)
    register_router_adapter(Counting(path), replace=True)
    replayed_logprobs(model, RouteReplayer(model), TOKENS, routes_for("qwen3_moe", 14))
    assert len(calls) == 2


class ArgsortRouter(Router):
    def forward(self, hidden):
        logits = self.linear(hidden.reshape(-1, hidden.shape[-1]))
        indices = logits.argsort(dim=-1, descending=True)[:, : self.experts_per_token]
        return logits, logits.gather(-1, indices).softmax(-1), indices


def test_a_router_without_topk_needs_an_adapter_of_its_own(registry):
    register_router_adapter(Adapter(ArgsortRouter))
    with pytest.raises(
        RuntimeError,
        match=r"model\.layers\.1\.mlp\.gate \(ArgsortRouter\) should choose experts once .* Adapter saw no choice\.",
    ):
        check_router_replay(model_with(ArgsortRouter))

    class ArgsortAdapter(Adapter):
        def run(self, router, forward, choose, args, kwargs):
            logits, _, live = forward(*args, **kwargs)
            experts = choose(live)
            return logits, logits.gather(-1, experts).softmax(-1), experts

    register_router_adapter(ArgsortAdapter(ArgsortRouter), replace=True)
    check_router_replay(model_with(ArgsortRouter))


def test_a_topk_with_another_k_is_not_the_choice(registry):
    class Peeks(Router):
        def forward(self, hidden):
            self.confidence = self.linear(hidden.reshape(-1, hidden.shape[-1])).topk(1).values.mean().item()
            return super().forward(hidden)

    register_router_adapter(Adapter(Peeks))
    check_router_replay(model_with(Peeks))


def test_a_router_that_seems_to_choose_twice(registry):
    class Twice(Router):
        def forward(self, hidden):
            super().forward(hidden)
            return super().forward(hidden)

    register_router_adapter(Adapter(Twice))
    with pytest.raises(RuntimeError, match=r"gate \(Twice\) should choose experts once .* saw more than one choice"):
        check_router_replay(model_with(Twice))


# ---- what the checker finds in a faulty adapter --------------------------------------------------------------------


class KeepsLiveGates(Adapter):
    def run(self, router, forward, choose, args, kwargs):
        logits, gates, live = forward(*args, **kwargs)
        return logits, gates, choose(live)


class ReplacesNothing(Adapter):
    def run(self, router, forward, choose, args, kwargs):
        output = forward(*args, **kwargs)
        choose(output[2])
        return output


class DetachesGates(Adapter):
    def run(self, router, forward, choose, args, kwargs):
        logits, gates, experts = super().run(router, forward, choose, args, kwargs)
        return logits, gates.detach(), experts


class LeavesAHook(Adapter):
    def run(self, router, forward, choose, args, kwargs):
        router.linear.bias.data.add_(0.1)
        output = super().run(router, forward, choose, args, kwargs)
        router.linear.bias.data.sub_(0.1)
        return output


class OtherRule(Adapter):
    def run(self, router, forward, choose, args, kwargs):
        logits, gates, experts = super().run(router, forward, choose, args, kwargs)
        return logits, gates * 0.9, experts


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (KeepsLiveGates, "the same experts in another order changes outputs by"),
        (ReplacesNothing, r"other experts in layer 0 \(model\.layers\.1\.mlp\.gate\) do not change the outputs"),
        (DetachesGates, "recording routes changes gradients by"),
        (LeavesAHook, "recording routes changes outputs by"),
        (OtherRule, "recording routes changes outputs by"),
    ],
)
def test_the_checker_finds_a_faulty_adapter(registry, adapter, message):
    register_router_adapter(adapter(Router))
    with pytest.raises(AssertionError, match=f"^Qwen3MoeForCausalLM: {message}"):
        check_router_replay(model_with(Router))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_checker_accepts_what_we_ship_and_leaves_the_model_alone(architecture):
    model = make_model(architecture).train()
    model.model.layers[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_router_replay(model)
    assert model.training
    assert not model.model.layers[0].training
    assert not model.is_activation_checkpointing
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_checker_needs_inputs_where_it_can_not_make_them(registry):
    register_router_adapter(Adapter(Router))
    with pytest.raises(ValueError, match=r"ModuleList has no config\.vocab_size; pass inputs"):
        check_router_replay(nn.ModuleList([Router()]))


def test_a_model_that_uses_all_experts(registry):
    register_router_adapter(Adapter(Router))
    with pytest.raises(AssertionError, match="sends every token to all of its 4 experts"):
        check_router_replay(model_with(lambda: Router(chosen=4)))


def test_the_example(registry, capsys):
    path = Path(__file__).parents[2] / "examples" / "my_router_adapter.py"
    spec = importlib.util.spec_from_file_location("my_router_adapter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    assert "keeps every promise" in capsys.readouterr().out
