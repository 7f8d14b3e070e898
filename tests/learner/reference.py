"""GRPO's gradient in the plainest way: one process, one sequence at a time, full log-softmax."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def reference_loss_and_gradient(
    path,
    batch,
    *,
    reduction="token-mean",
    fixed_length=None,
    temperature=1.0,
    entropy_coefficient=0.0,
    old_logprobs=None,
    clip=(0.2, 0.2),
):
    """Loss and gradients by parameter name, computed without packing, micro-batches or ranks."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    starts_prompt = np.concatenate([[0], np.cumsum(batch.prompt_lengths)])
    starts = np.concatenate([[0], np.cumsum(batch.response_lengths)])
    trained = [int(batch.loss_mask[starts[i] : starts[i + 1]].sum()) for i in range(batch.num_samples)]
    responses = sum(count > 0 for count in trained)
    total = torch.zeros(())
    for i in range(batch.num_samples):
        if trained[i] == 0:
            continue
        prompt = batch.prompt_ids[starts_prompt[i] : starts_prompt[i + 1]].tolist()
        response = batch.response_ids[starts[i] : starts[i + 1]].tolist()
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / temperature
        everything = logits.log_softmax(-1)
        logprobs = everything.gather(1, torch.tensor(response)[:, None])[:, 0]
        old = logprobs.detach() if old_logprobs is None else old_logprobs[starts[i] : starts[i + 1]]
        ratio = (logprobs - old).exp()
        advantage = float(batch.advantages[i])
        loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip[0], 1 + clip[1]) * advantage)
        entropy = -(everything.exp() * everything).sum(-1)
        loss = loss - entropy_coefficient * entropy
        loss = loss[torch.from_numpy(batch.loss_mask[starts[i] : starts[i + 1]].copy())].sum()
        denominator = {
            "token-mean": sum(trained),
            "seq-mean-token-mean": trained[i] * responses,
            "seq-mean-token-sum": responses,
            "seq-mean-token-sum-norm": (fixed_length or 0) * responses,
        }[reduction]
        total = total + loss / denominator
    total.backward()
    return float(total), {name: parameter.grad for name, parameter in model.named_parameters()}


def largest_relative_error(found, expected) -> float:
    """The largest difference of any entry, relative to the largest entry of its tensor."""
    assert set(found) == set(expected)
    return max(
        float((found[name] - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-12))
        for name in expected
    )
