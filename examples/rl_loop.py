"""The whole GRPO loop with a correction on one page, without a framework: to read, and to check the library against.

    python examples/rl_loop.py --iterations 20

Everything is padded and plain: one process, one model that samples and trains, PyTorch and transformers only.
The library does the same with vLLM, DeepSpeed and Ray; `tests/learner/test_rl_loop.py` shows that both compute
the same loss and gradient on the same batch.

Dimensions in comments: B = samples = prompts * G, G = group size, N = longest prompt + response, V = vocabulary.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_algos.envs import PromptEnv, make_prompt_env
from rlhf_algos.models import resolve_model


@dataclass(frozen=True)
class Samples:
    """Responses to prompts, padded on the right after prompt and response were joined."""

    token_ids: torch.Tensor  # [B, N]
    attention_mask: torch.Tensor  # [B, N] True on prompt and response
    loss_mask: torch.Tensor  # [B, N-1] True where the *next* token is a sampled one
    rollout_logprobs: torch.Tensor  # [B, N-1] log q of the next token
    rewards: torch.Tensor  # [B] float64


# ---- 1. rewards to advantages -------------------------------------------------------------------------------------


def group_advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """[B] -> [B]: distance from the group's mean over the group's (population) standard deviation, in float64."""
    groups = rewards.double().view(-1, group_size)  # [prompts, G]
    mean = groups.mean(dim=1, keepdim=True)
    std = groups.std(dim=1, keepdim=True, correction=0)
    return ((groups - mean) / (std + 1e-6)).flatten().float()


# ---- 2. log-probabilities under the trainer ------------------------------------------------------------------------


def next_token_logprobs(model: torch.nn.Module, samples: Samples, temperature: float) -> torch.Tensor:
    """[B, N-1]: log p of each next token at the temperature that was sampled with."""
    positions = (samples.attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
    logits = model(samples.token_ids, attention_mask=samples.attention_mask, position_ids=positions).logits
    logprobs = (logits[:, :-1].float() / temperature).log_softmax(dim=-1)  # [B, N-1, V]
    return logprobs.gather(-1, samples.token_ids[:, 1:, None])[..., 0]


# ---- 3. the loss ---------------------------------------------------------------------------------------------------


def grpo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    weight_high: float = 2.0,
) -> torch.Tensor:
    """The clipped surrogate times a truncated importance weight (TIS), averaged over all sampled tokens of the batch.

    logprobs, old_logprobs, rollout_logprobs, loss_mask: [B, N-1]; advantages: [B], shared by the tokens of a response.
    """
    ratio = (logprobs - old_logprobs).exp()
    advantage = advantages[:, None]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    # What was sampled by q counts as if p0 had sampled it, up to a bound; the weight has no gradient.
    weight = (old_logprobs - rollout_logprobs).clamp(-20, 20).exp().clamp(max=weight_high).detach()
    return -(weight * surrogate)[loss_mask].sum() / loss_mask.sum()


# ---- 4. sampling ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def sample(
    model: torch.nn.Module,
    tokenizer: AutoTokenizer,
    environments: list[PromptEnv],
    prompts: list[str],
    *,
    temperature: float,
    max_response_tokens: int,
) -> Samples:
    """Samples one response per environment, recording log q, and lets each environment score its own."""
    rows = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    prompt_lengths = [len(row) for row in rows]
    logq: list[list[float]] = [[] for _ in rows]
    running = list(range(len(rows)))
    for _ in range(max_response_tokens):
        lengths = torch.tensor([len(rows[i]) for i in running])
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(rows[i]) for i in running], True, pad)  # [running, n]
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        logits = model(ids, attention_mask=mask).logits[torch.arange(len(running)), lengths - 1].float()
        logprobs = (logits / temperature).log_softmax(dim=-1)  # [running, V]
        chosen = torch.multinomial(logprobs.exp(), 1)[:, 0]
        for place, i in enumerate(running):
            rows[i].append(int(chosen[place]))
            logq[i].append(float(logprobs[place, chosen[place]]))
        running = [i for i in running if rows[i][-1] != end]
        if not running:
            break

    responses = [row[length:] for row, length in zip(rows, prompt_lengths, strict=True)]
    # Without the token that ended it; any other special token is shown, so that the reward can see it.
    texts = [tokenizer.decode(row[:-1] if row[-1] == end else row) for row in responses]
    rewards = [env.step(text)[1] for env, text in zip(environments, texts, strict=True)]

    token_ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, pad)  # [B, N]
    place = torch.arange(token_ids.shape[1])
    starts, stops = torch.tensor(prompt_lengths), torch.tensor([len(row) for row in rows])
    attention_mask = place < stops[:, None]
    # The token at place n is predicted at place n - 1: the mask and log q stand there.
    loss_mask = (attention_mask & (place >= starts[:, None]))[:, 1:]
    rollout_logprobs = torch.zeros(loss_mask.shape)
    rollout_logprobs[loss_mask] = torch.tensor([value for row in logq for value in row])
    return Samples(token_ids, attention_mask, loss_mask, rollout_logprobs, torch.tensor(rewards, dtype=torch.float64))


# ---- 5. the loop ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Trains the bundled model and prints reward and mismatch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    path = resolve_model("rlhf_algos/tiny-moe")
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.0)
    environments = [
        make_prompt_env("rlhf_algos/Addition-v0", {"digits": 2})
        for _ in range(arguments.prompts * arguments.group_size)
    ]

    for iteration in range(arguments.iterations):
        # The G members of a group are environments reset with one seed: the same prompt.
        prompts = []
        for i, env in enumerate(environments):
            group = iteration * arguments.prompts + i // arguments.group_size
            prompts.append(env.reset(seed=arguments.seed * 1_000_003 + group)[0])
        samples = sample(
            model, tokenizer, environments, prompts, temperature=arguments.temperature, max_response_tokens=8
        )
        advantages = group_advantages(samples.rewards, arguments.group_size)
        logprobs = next_token_logprobs(model, samples, arguments.temperature)
        # One step per iteration: the old policy is the current one, and the ratio starts at 1.
        loss = grpo_loss(logprobs, logprobs.detach(), samples.rollout_logprobs, advantages, samples.loss_mask)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        mismatch = (logprobs.detach() - samples.rollout_logprobs)[samples.loss_mask].abs().mean()
        print(
            f"iteration {iteration:3d}   reward {samples.rewards.mean():.3f}   "
            f"mean |log p - log q| {mismatch:.1e}   loss {loss.item():+.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
