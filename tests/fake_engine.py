"""A table of answers in place of an engine: what a rollout actor asks for can be seen, and costs no start."""

from __future__ import annotations

import functools
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoTokenizer

from rlhf_algos.models import resolve_model
from rlhf_algos.rollout.engine import Generation
from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner

#: Ids of the bundled tokenizer: its digits begin at ZERO, END and 2 end a response.
ZERO, END = 22, 1


class FakeEngine:
    """Answers every request with `answer(request)`'s token ids, one request per step; keeps the requests."""

    max_model_len = 64
    vocabulary_size = 263

    def __init__(self, answer=lambda request: [ZERO + 1, END]):
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

    def load(self, weights):
        self.loaded = dict(weights)


def new_runner(config, answer=lambda request: [ZERO + 1, END], engine=None):
    """A rollout actor in this process as it is after its start, without weights; its engine is a table of answers."""
    threads = torch.get_num_threads()
    # It would seed this process and make torch deterministic in it, for all tests that follow.
    with patch("ray.rllib.env.env_runner.update_global_seed_if_necessary"):
        runner = VLLMEnvRunner(config=config, engine=engine or FakeEngine(answer), worker_index=1)
    torch.set_num_threads(threads)
    runner.require_constructed()
    return runner


def fake_runner(config, answer=lambda request: [ZERO + 1, END], engine=None):
    """A rollout actor that can play at once, with version 0."""
    runner = new_runner(config, answer, engine)
    runner.use_loaded_weights()
    return runner


@functools.cache
def _tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model("rlhf_algos/tiny-moe"))


def prompts_of(requests):
    """The prompts of requests as text."""
    return [_tokenizer().decode(request.prompt_ids) for request in requests]


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
