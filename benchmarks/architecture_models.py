"""Tiny random models of every supported architecture, on which a wrong expert, route or tensor moves log-probabilities.

Sizes are what vLLM's CPU kernels take: head dimensions and widths are multiples of 32 (for DeepSeek-V3's attention the
real ones, the only ones there). Where an architecture has leading dense layers, windows, groups, shared experts or
biases, the tiny model has them too, and windows are shorter than the sequences.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_algos.models import resolve_model

# Standard deviation of the noise on every weight. Rounding grows with the logits, and DeepSeek-V3's attention, which
# has its real sizes here, makes larger ones: with 0.15 the mean difference is 0.9e-6 to 1.1e-6.
NOISE = 0.15
LESS_NOISE = {"deepseek_v3": 0.1}
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

#: By `model_type`: whether there are routers, and the configuration beyond the common sizes.
ARCHITECTURES: dict[str, tuple[bool, dict[str, Any]]] = {
    "qwen3_moe": (
        True,
        {**_EXPERTS, "num_experts": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [0]},
    ),
    "qwen2_moe": (
        True,
        {
            **_EXPERTS,
            "num_experts": 8,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "mixtral": (True, {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "olmoe": (True, {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False, "intermediate_size": 32}),
    "glm4_moe": (
        True,
        {
            **_EXPERTS,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "num_nextn_predict_layers": 0,
        },
    ),
    "deepseek_v3": (
        True,
        {
            **_EXPERTS,
            "num_key_value_heads": 2,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "q_lora_rank": 32,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            # Of the rotary part.
            "head_dim": 64,
            "qk_nope_head_dim": 64,
            "v_head_dim": 64,
            # As in the real model; with plain positions vLLM's DeepSeek attention is wrong by 0.3 on a CPU.
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "num_nextn_predict_layers": 0,
        },
    ),
    "gpt_oss": (
        True,
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "llama": (False, {}),
    "qwen2": (False, {}),
    "qwen3": (False, {}),
    "mistral": (False, {"sliding_window": 8}),
    "gemma3_text": (
        False,
        {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 32,
        },
    ),
}
VOCABULARIES = (263, 320, 512)


def write_model(folder: Path, architecture: str, *, tied: bool, vocabulary: int) -> Path:
    """Saves a model with the bundled model's tokenizer, whose 263 tokens are the first of its vocabulary."""
    _, settings = ARCHITECTURES[architecture]
    values = {**_SIZES, **settings, "vocab_size": vocabulary, "tie_word_embeddings": tied}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **values), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * LESS_NOISE.get(architecture, NOISE))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.3)
    model.save_pretrained(folder)
    # Settings that transformers does not know, but real checkpoints have and vLLM reads.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **config}, indent=2))
    source = Path(resolve_model("rlhf_algos/tiny-moe"))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder / name)
    return folder
