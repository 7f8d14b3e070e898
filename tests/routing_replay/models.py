"""Tiny random models of every supported architecture, on which a wrong route moves log-probs by 0.05 and more."""

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 32
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_FOUR_EXPERTS = {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}

# Small random mixtures of experts; leading dense layers where the architecture has them.
_MAKERS = {
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **_FOUR_EXPERTS,
            num_hidden_layers=3,
            mlp_only_layers=[0],
            decoder_sparse_step=1,
            norm_topk_prob=True,
            head_dim=8,
        )
    ),
    "qwen2_moe": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **_FOUR_EXPERTS,
            num_hidden_layers=2,
            decoder_sparse_step=1,
            norm_topk_prob=False,
            shared_expert_intermediate_size=8,
        )
    ),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(
            **{**_SIZES, "intermediate_size": 8},
            num_hidden_layers=2,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
        )
    ),
    "olmoe": lambda: OlmoeForCausalLM(
        OlmoeConfig(
            **{**_SIZES, "intermediate_size": 8},
            num_hidden_layers=2,
            num_experts=6,
            num_experts_per_tok=3,
            norm_topk_prob=False,
        )
    ),
    # One group: the choice and the group scores then have the same number of experts and the same k.
    "glm4_moe": lambda: Glm4MoeForCausalLM(
        Glm4MoeConfig(
            **_SIZES,
            num_hidden_layers=3,
            first_k_dense_replace=1,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=8,
            n_group=1,
            topk_group=1,
            routed_scaling_factor=1.5,
            head_dim=8,
        )
    ),
    "deepseek_v3": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **{**_SIZES, "num_key_value_heads": 2},
            num_hidden_layers=3,
            first_k_dense_replace=1,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=8,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
            q_lora_rank=8,
            kv_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=8,
        )
    ),
    "gpt_oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            **{**_SIZES, "intermediate_size": 8},
            num_hidden_layers=2,
            num_local_experts=4,
            num_experts_per_tok=2,
            head_dim=8,
            sliding_window=4,
            attn_implementation="eager",
        )
    ),
}
ARCHITECTURES = tuple(_MAKERS)
# (mixture-of-experts layers, experts, experts per token, decoder layers with a router)
SIZES = {
    "qwen3_moe": (2, 4, 2, (1, 2)),
    "qwen2_moe": (2, 4, 2, (0, 1)),
    "mixtral": (2, 4, 2, (0, 1)),
    "olmoe": (2, 6, 3, (0, 1)),
    "glm4_moe": (2, 4, 2, (1, 2)),
    "deepseek_v3": (2, 8, 3, (1, 2)),
    "gpt_oss": (2, 4, 2, (0, 1)),
}


def make_model(architecture="qwen3_moe", *, attention=None):
    """A model with every matrix multiplied by 10, so that routes matter, and biases that are not 0."""
    torch.manual_seed(0)
    model = _MAKERS[architecture]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and not name.endswith("bias"):
                parameter.mul_(10)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.3)
    if attention is not None:
        model.set_attn_implementation(attention)
    return model.eval()


def random_routes(num_tokens, num_layers, num_experts, top_k, *, seed=0):
    """`[N, L, E]`, different experts for every token and layer."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_tokens, num_layers, num_experts, generator=generator)
    return scores.argsort(dim=-1)[..., :top_k]


def routes_for(architecture, num_tokens, *, seed=0):
    layers, experts, top_k, _ = SIZES[architecture]
    return random_routes(num_tokens, layers, experts, top_k, seed=seed)


def next_token_logprobs(model, input_ids):
    """`[B, S - 1]` log-probabilities of the tokens that follow."""
    logits = model(input_ids=input_ids, use_cache=False).logits
    return logits[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None])[..., 0]


def replayed_logprobs(model, replayer, input_ids, routes):
    with replayer.replaying(routes):
        return next_token_logprobs(model, input_ids)


def gradients(model, loss):
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return dict(zip([name for name, _ in model.named_parameters()], found, strict=True))


def largest_difference(first, second):
    """Over all parameters, relative to the largest gradient if that is above 1."""
    scale = max([1.0, *(float(value.abs().max()) for value in second.values())])
    return max(float((first[name] - second[name]).abs().max()) for name in second) / scale


TOKENS = torch.tensor([[5, 9, 3, 7, 30, 1, 12], [2, 8, 1, 4, 19, 22, 6]])
