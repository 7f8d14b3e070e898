"""What this library reaches into of vLLM 0.30.0, all of it.

`tests/rollout/test_vllm_engine.py` has a test for each entry, which says what broke when vLLM changes.
"""

from __future__ import annotations

from typing import NamedTuple


class PrivatePart(NamedTuple):
    """Something of vLLM that is not public: where it stands, why it is needed, what breaks without it."""

    key: str
    name: str
    why: str
    breaks: str


#: Everything that `vllm_engine`, `vllm_checks` and `vllm_weights` reach into; "reload" is
#: `vllm.model_executor.model_loader.reload`.
PRIVATE_PARTS = (
    PrivatePart(
        "in-process",
        "VLLM_ENABLE_V1_MULTIPROCESSING=0: the engine core runs in this process (InprocClient)",
        "one deterministic order of steps, and the model can be reached",
        "everything below",
    ),
    PrivatePart(
        "engine-core",
        "LLMEngine.engine_core: add_request, get_output, abort_requests",
        "`LLMEngine.step` makes a Python object per token and head entry, which costs most of the sampling speed",
        "sampling",
    ),
    PrivatePart(
        "request-template",
        "LLMEngine.input_processor.process_inputs, and the request's fields request_id and sampling_params",
        "the members of a group differ in their noise only; validating each of them takes longer than sampling it",
        "sampling, or all members of a group get the same noise",
    ),
    PrivatePart(
        "arrays",
        "EngineCoreOutput: new_logprobs with the sampled token in column 0, routed_experts, prefill_stats",
        "log q, head and routes as arrays",
        "recorded log-probabilities or routes belong to other tokens",
    ),
    PrivatePart(
        "model",
        "LLMEngine.collective_rpc and apply_model with a function; get_model and vllm_config of a worker",
        "the public way loads weights without telling whether they were complete",
        "weight updates",
    ),
    PrivatePart(
        "layerwise-reload",
        "reload: initialize_layerwise_reload, finalize_layerwise_reload",
        "the live model of a CPU has empty parameters in place of packed ones",
        "weight updates",
    ),
    PrivatePart(
        "layer-record",
        "reload.layerwise.get_layerwise_info: can_load, load_numel, load_numel_total, loaded_weights, restore_metadata",
        "a layer that was written partly is accepted with a debug message",
        "a missing tensor is not noticed: the sampler goes on with an old or empty one",
    ),
    PrivatePart(
        "progress",
        "reload.layerwise.get_numel_loaded, replaced while weights are loaded; loaders call their tensor loaded_weight",
        "vLLM loads each tensor twice in order to count it",
        "weight updates take half as long again, or layers are taken for whole too early",
    ),
    PrivatePart(
        "in-place",
        "reload.layerwise._layerwise_process and _get_original_loader, reload.meta.materialize_layer",
        "gpt-oss writes its experts and sinks past the loaders, and the reload loses them",
        "updates of gpt-oss are refused",
    ),
    PrivatePart(
        "uncounted",
        "reload.meta.SKIP_LOAD_TENSORS",
        "these tensors are in no count",
        "a missing correction bias of a router is not noticed",
    ),
    PrivatePart(
        "expert-kernel",
        "quant_method.moe_kernel of expert layers",
        "on a CPU a reload leaves expert weights in checkpoint layout where the kernel expects its packed layout",
        "log-probabilities are wrong by hundredths after every update, and nothing looks wrong",
    ),
    PrivatePart(
        "tied-head",
        "VocabParallelEmbedding, ParallelLMHead: weight, quant_method, num_embeddings_padded, org_vocab_size",
        "on a CPU a tied head computes with a packed copy of the weights that it was started with",
        "a tied model samples with its first head after every update",
    ),
    PrivatePart(
        "rotary-positions",
        "rotary_emb of layers with qk_rope_head_dim: forward_native, head_size, cos_sin_cache",
        "a CPU's kernel for plain rotary positions turns the queries of latent attention (DeepSeek-V3) wrongly",
        "log-probabilities are wrong by tenths, and nothing looks wrong",
    ),
    PrivatePart(
        "no-compilation",
        "torch._dynamo.config.disable and TORCH_COMPILE_DISABLE before vLLM is imported",
        "vLLM compiles a sampler helper even in eager mode",
        "a start needs a C++ compiler and half a minute",
    ),
)
