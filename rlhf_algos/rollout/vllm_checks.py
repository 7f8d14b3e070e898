"""What vLLM 0.30.0 would compute wrongly or not at all with a model, said when its engine starts."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig


def check_model(model: torch.nn.Module, config: PreTrainedConfig) -> None:
    """Raises ValueError for a model that vLLM can't sample from rightly on this machine.

    Args:
        model: vLLM's, loaded.
        config: the text model's Hugging Face config.
    """
    check_sinks(model)
    check_rotary_positions(model)
    check_tied_head(model, config)


def check_sinks(model: torch.nn.Module) -> None:
    """Raises ValueError at the start for what a CPU would only refuse when it samples."""
    dtypes = {parameter.dtype for name, parameter in model.named_parameters() if name.endswith(".sinks")}
    if not torch.cuda.is_available() and dtypes - {torch.bfloat16}:
        raise ValueError(
            "vLLM's attention with learned sinks (gpt-oss) takes bfloat16 only on a CPU: set vllm(dtype='bfloat16')."
        )


def check_rotary_positions(model: torch.nn.Module) -> None:
    """Raises ValueError if a CPU's kernel turns the queries of latent attention wrongly.

    These have one row per head, `[tokens, heads, rotary size]`, where other attention hands over flat ones. vLLM's CPU
    kernel for plain positions does not turn them as its own PyTorch form does; YaRN positions have no kernel.
    """
    if torch.cuda.is_available():
        return
    for name, layer in model.named_modules():
        rotary = layer._modules.get("rotary_emb")
        if rotary is not None and hasattr(layer, "qk_rope_head_dim") and not _turns_every_head(rotary):
            raise ValueError(
                f"vLLM's kernel for plain rotary positions is wrong for latent attention (DeepSeek-V3, {name}) on a "
                "CPU: log-probabilities would be off by tenths. Have vLLM compute positions in PyTorch, "
                "vllm(compilation_config={'custom_ops': ['all', '-rotary_embedding']}), or sample on a GPU."
            )


def _turns_every_head(rotary: Any) -> bool:
    size, dtype = rotary.head_size, rotary.cos_sin_cache.dtype
    positions = torch.arange(1, 4)
    query = torch.linspace(-1, 1, 3 * 2 * size).view(3, 2, size).to(dtype)
    key = query[:, :1].contiguous()
    expected, _ = rotary.forward_native(positions, query.clone(), key.clone())
    found, _ = rotary(positions, query.clone(), key.clone())
    # Above what bfloat16 rounds, far below what a wrong angle does.
    return bool((found.float() - expected.float()).abs().max() < 0.05)


def check_tied_head(model: torch.nn.Module, config: PreTrainedConfig) -> None:
    """Raises ValueError if vLLM would sample with an output head that no tensor fills."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    # False by now if the checkpoint holds the head as well: vLLM then loads it.
    if not getattr(config, "tie_word_embeddings", False):
        return
    heads = {id(m.weight) for m in model.modules() if isinstance(m, ParallelLMHead)}
    others = {id(p) for m in model.modules() if not isinstance(m, ParallelLMHead) for p in m.parameters(recurse=False)}
    if heads - others:
        raise ValueError(
            f"vLLM's {type(model).__name__} does not tie its output head, but the model's config says "
            "tie_word_embeddings=true and its checkpoint holds no lm_head.weight: vLLM would sample with a head of "
            "random numbers. Save it untied (tie_word_embeddings=false, the embedding's weight as lm_head.weight)."
        )
