"""A rollout actor whose engine answers from a table: what reaches it, and what is made of its answers, without vLLM."""

from collections.abc import Callable
from typing import Any

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.rollout.vllm_engine import Generation, GenerationRequest
from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner

END = 1


class ToyEngine:
    """Answers each request with the ids that `answer(request)` gives.

    Attributes:
        requests: all that were added.
    """

    max_model_len, vocabulary_size = 512, 263

    def __init__(self, answer: Callable[[GenerationRequest], list[int]]) -> None:
        self.answer, self.requests, self._waiting = answer, [], []

    @property
    def num_running(self) -> int:
        return len(self._waiting)

    def add(self, request: GenerationRequest) -> None:
        self.requests.append(request)
        self._waiting.append(request)

    def step(self) -> list[tuple[str, Generation]]:
        done, self._waiting = self._waiting, []
        return [(request.key, self._generation(request)) for request in done]

    def _generation(self, request: GenerationRequest) -> Generation:
        ids = self.answer(request)
        return Generation(request.prompt_ids, ids, [-0.5] * len(ids), finish_reason="stop")

    def abort_all(self) -> None:
        self._waiting = []


def toy_runner(env: Any, answer: Callable[[GenerationRequest], list[int]] = lambda request: [23, END], **training: Any):
    """A rollout actor in this process, at weight version 0, with groups of 4 unless told otherwise.

    Args:
        env: as in `environment(env)`.
        answer: of the engine.
        training: options of `training(...)`.
    """
    config = GRPOConfig().environment(env).training(**{"group_size": 4, **training}).debugging(seed=0)
    config.validate()
    runner = object.__new__(VLLMEnvRunner)
    runner._environments, runner.worker_index, runner._router = {}, 1, None
    runner.configure(config)
    runner._engine, runner._weight_version = ToyEngine(answer), 0
    return runner
