"""A table of answers in place of an engine: what a rollout actor asks for can be seen, and costs no start."""

from __future__ import annotations

import numpy as np

from rlhf_algos.rollout.vllm_engine import Generation
from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner


class FakeEngine:
    """Answers every request with `answer(request)`'s token ids, one request per step; keeps the requests."""

    max_model_len = 64
    vocabulary_size = 263

    def __init__(self, answer):
        self.answer, self.requests, self.waiting, self.loaded = answer, [], [], None

    def add(self, request):
        self.requests.append(request)
        self.waiting.append(request)

    @property
    def num_running(self):
        return len(self.waiting)

    def step(self):
        request = self.waiting.pop(0)
        ids = list(self.answer(request))[: request.max_tokens]
        ended = bool(ids) and ids[-1] in request.stop_token_ids
        generation = Generation(request.prompt_ids, ids, [-1.0] * len(ids))
        generation.finish_reason = "stop" if ended else "length"
        if request.num_logprobs:
            # The sampled token alone is the whole distribution.
            generation.logprobs = [0.0] * len(ids)
            generation.head_ids = [np.array([token]) for token in ids]
            generation.head_logprobs = [np.array([0.0]) for _ in ids]
        return [(request.key, generation)]

    def abort_all(self):
        self.waiting.clear()

    def load_weights(self, weights):
        self.loaded = dict(weights)


def fake_runner(config, answer=lambda request: [23, 1]):
    """A rollout actor in this process, configured as a real one, whose engine is a table of answers."""
    runner = object.__new__(VLLMEnvRunner)
    runner._environments, runner._router, runner._broken, runner.worker_index = {}, None, None, 1
    runner.configure(config)
    runner._engine = FakeEngine(answer)
    runner._weight_version = 0
    return runner


class Death(BaseException):
    """What a fake actor's process ends with: nothing is written any more, so these files stay as they are."""

    def __init__(self, files=()):
        super().__init__()
        self.files = {file: file.read_bytes() for file in files}


class FakeGroup:
    """RLlib's group of actors, with the actors in this process; one in which `Death` is raised is gone."""

    def __init__(self, runners):
        self.runners = dict(enumerate(runners, 1))
        self.healthy = set(self.runners)

    def healthy_env_runner_ids(self):
        return sorted(self.healthy)

    def probe_unhealthy_env_runners(self):
        back = sorted(set(self.runners) - self.healthy)
        self.healthy = set(self.runners)
        return back

    def foreach_env_runner(self, functions, *, kwargs, remote_worker_ids, **options):
        outcomes = []
        for function, arguments, actor in zip(functions, kwargs, remote_worker_ids, strict=True):
            try:
                outcomes.append(function(self.runners[actor], **arguments))
            except Death as death:
                self.healthy.discard(actor)
                for file, content in death.files.items():
                    file.write_bytes(content)
        return outcomes
