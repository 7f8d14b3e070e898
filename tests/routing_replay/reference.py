"""A mixture of experts written out by hand: every expert on every token, gates of 0 for those not chosen."""

import torch
from torch.nn import functional


def router_of(block):
    return getattr(block, "router", None) or block.gate


def scores_of(architecture, block, x):
    """What the choice is made on, and what gates are made of: `[N, experts]` each."""
    router = router_of(block)
    if architecture in ("glm4_moe", "deepseek_v3"):
        affinity = 1 / (1 + torch.exp(-(x @ router.weight.T)))
        return affinity + router.e_score_correction_bias, affinity
    logits = x @ router.weight.T
    if architecture == "gpt_oss":
        logits = logits + router.bias
        return logits, logits
    exponentials = torch.exp(logits - logits.max(dim=-1, keepdim=True).values)
    probabilities = exponentials / exponentials.sum(dim=-1, keepdim=True)
    return probabilities, probabilities


def live_choice(architecture, block, x, top_k):
    """`[N, top_k]`: what the architecture would choose, token by token."""
    scores, _ = scores_of(architecture, block, x)
    router = router_of(block)
    choices = []
    for row in scores.tolist():
        allowed = range(len(row))
        if architecture in ("glm4_moe", "deepseek_v3"):
            size = len(row) // router.num_group
            groups = [row[start : start + size] for start in range(0, len(row), size)]
            best = sorted(range(len(groups)), key=lambda g: -sum(sorted(groups[g])[-2:]))[: router.topk_group]
            allowed = [expert for expert in range(len(row)) if expert // size in best]
        choices.append(sorted(allowed, key=lambda expert: -row[expert])[:top_k])
    return torch.tensor(choices)


def gates_of(architecture, block, x, chosen):
    """`[N, experts]`: the gate of every expert, 0 if not chosen."""
    router = router_of(block)
    _, scores = scores_of(architecture, block, x)
    mask = torch.zeros_like(scores).scatter(1, chosen, 1.0)
    if architecture == "gpt_oss":
        exponentials = torch.exp(scores - scores.max(dim=-1, keepdim=True).values) * mask
        return exponentials / exponentials.sum(dim=-1, keepdim=True)
    gates = scores * mask
    if architecture == "mixtral" or getattr(router, "norm_topk_prob", False):
        gates = gates / gates.sum(dim=-1, keepdim=True)
    return gates * getattr(router, "routed_scaling_factor", 1.0)


def expert_output(architecture, block, expert, x):
    experts = block.experts
    if architecture == "gpt_oss":
        both = x @ experts.gate_up_proj[expert] + experts.gate_up_proj_bias[expert]
        gate, up = both[:, 0::2].clamp(max=7.0), both[:, 1::2].clamp(-7.0, 7.0)
        hidden = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        return hidden @ experts.down_proj[expert] + experts.down_proj_bias[expert]
    width = experts.gate_up_proj.shape[1] // 2
    gate, up = x @ experts.gate_up_proj[expert, :width].T, x @ experts.gate_up_proj[expert, width:].T
    return (gate * torch.sigmoid(gate) * up) @ experts.down_proj[expert].T


def mixture(architecture, block, hidden, chosen):
    x = hidden.reshape(-1, hidden.shape[-1])
    gates = gates_of(architecture, block, x, chosen)
    output = sum(
        gates[:, expert, None] * expert_output(architecture, block, expert, x) for expert in range(gates.shape[1])
    )
    if architecture == "qwen2_moe":
        output = output + torch.sigmoid(functional.linear(x, block.shared_expert_gate.weight)) * block.shared_expert(x)
    if architecture in ("glm4_moe", "deepseek_v3"):
        output = output + block.shared_experts(x)
    return output.reshape(hidden.shape)


def with_reference_mixture(architecture, model, routes):
    """The model with its mixture-of-experts layers replaced by the hand-written one on `routes` `[N, L, E]`.

    Rows of -1 use the live choice. Attention and everything else stay the library's. The live choices are collected in
    the returned list, one `[N, E]` per layer.
    """
    live_choices = []
    blocks = [module for module in model.modules() if "experts" in dict(module.named_children())]

    def install(block, layer):
        def forward(hidden):
            x = hidden.reshape(-1, hidden.shape[-1])
            live = live_choice(architecture, block, x, routes.shape[-1])
            live_choices.append(live)
            given = routes[:, layer]
            output = mixture(architecture, block, hidden, torch.where(given < 0, live, given))
            return (output, None) if architecture == "gpt_oss" else output

        block.forward = forward

    for layer, block in enumerate(blocks):
        install(block, layer)
    return model, live_choices
