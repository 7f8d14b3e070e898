"""The loop on one page and the library compute the same advantages, loss and gradient on the same batch."""

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_algos.driver.calls import on_learners
from rlhf_algos.objectives import group_advantages
from tests.learner.conftest import make_batch
from tests.learner.reference import largest_relative_error

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rl_loop():
    spec = importlib.util.spec_from_file_location("rl_loop", ROOT / "examples" / "rl_loop.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rl_loop"] = module
    spec.loader.exec_module(module)
    return module


def padded(rl_loop, batch):
    """The library's ragged batch in the loop's padded form."""
    prompts = np.split(batch.prompt_ids, np.cumsum(batch.prompt_lengths)[:-1])
    responses = np.split(batch.response_ids, np.cumsum(batch.response_lengths)[:-1])
    rows = [torch.from_numpy(np.concatenate(pair)) for pair in zip(prompts, responses, strict=True)]
    token_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    place = torch.arange(token_ids.shape[1])
    starts, stops = torch.from_numpy(batch.prompt_lengths), torch.tensor([len(row) for row in rows])
    attention_mask = place < stops[:, None]
    loss_mask = (attention_mask & (place >= starts[:, None]))[:, 1:]
    rollout_logprobs = torch.zeros(loss_mask.shape)
    rollout_logprobs[loss_mask] = torch.from_numpy(batch.rollout_logprobs)
    return rl_loop.Samples(token_ids, attention_mask, loss_mask, rollout_logprobs, torch.from_numpy(batch.rewards))


def test_advantages_agree(rl_loop):
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1])
    expected = group_advantages(rewards, torch.arange(12) // 4)
    assert torch.allclose(rl_loop.group_advantages(rewards, 4), expected, atol=1e-5)


def test_loss_and_gradient_agree_with_the_library(rl_loop, learners, peaked_models):
    batch = make_batch([9, 3, 12, 5])
    # So low that some ratios p / q exceed the weight's bound of 2, and others don't.
    batch = dataclasses.replace(batch, rollout_logprobs=batch.rollout_logprobs - np.float32(6.0))
    group = learners(num_learners=2, token_budget=25, corrector="tis")
    metrics = on_learners(group, lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0))[0]
    gradients = on_learners(group, lambda learner: learner.gradients)[0][0]

    model = AutoModelForCausalLM.from_pretrained(peaked_models["untied"], dtype=torch.float32)
    samples = padded(rl_loop, batch)
    logprobs = rl_loop.next_token_logprobs(model, samples, temperature=1.0)
    advantages = torch.from_numpy(batch.advantages)
    loss = rl_loop.grpo_loss(logprobs, logprobs.detach(), samples.rollout_logprobs, advantages, samples.loss_mask)
    loss.backward()
    assert 0 < metrics["tis_clipfrac"] < 1
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert largest_relative_error(gradients, expected) < 1e-5
    difference = (logprobs.detach() - samples.rollout_logprobs)[samples.loss_mask].abs().mean().item()
    assert metrics["train_rollout_logprob_abs_diff"] == pytest.approx(difference, abs=1e-5)


def test_it_runs_and_is_short():
    assert len((ROOT / "examples" / "rl_loop.py").read_text().splitlines()) < 250
    command = [sys.executable, "examples/rl_loop.py", "--iterations", "2", "--prompts", "4", "--group-size", "2"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(output) == 2
    assert output[1].startswith("iteration   1   reward")
