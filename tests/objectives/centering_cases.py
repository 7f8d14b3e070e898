"""Weights, distributions and the route through the losses, for the tests of score centering and of the oracle."""

import torch
from hypothesis import strategies as st

from rlhf_algos.objectives import centered_reinforce_loss, score_centering_term

# Elementwise functions of the ratio, written out here so that no corrector is tested with itself.
WEIGHTS = {
    "none": torch.ones_like,
    "importance": lambda ratio: ratio,
    "tis": lambda ratio: ratio.clamp(0.0, 2.0),
    "icepop": lambda ratio: torch.where((ratio >= 0.5) & (ratio <= 2.0), ratio, 0.0),
    "wavy": lambda ratio: ratio.sqrt() + 0.3 * (3.0 * ratio).sin(),
}


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def distributions(vocabulary, seed):
    """Logits of p, and q, so far apart that every weight bites somewhere."""
    generator = torch.Generator().manual_seed(seed)
    logits, other = torch.randn(2, vocabulary, generator=generator, dtype=torch.float64) * 1.5
    return logits, torch.softmax(other, 0)


def ascent(logits, rollout_probs, action, advantage, weight_fn, *, head_ids=None, centered=True, **options):
    """What the loss of one token adds to the logits when it is descended: minus its gradient, ``[V]``."""
    logits = logits.detach().clone().requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    weights = weight_fn((logprobs[action] - rollout_probs[action].log()).exp().reshape(1))
    if centered:
        head_ids = torch.arange(logits.numel()) if head_ids is None else head_ids
        head, rollout_head = logprobs[head_ids], rollout_probs.log()[head_ids]
        term, _, _ = score_centering_term(head[None], rollout_head[None], weight_fn, **options)
    else:
        term = torch.zeros(1, dtype=torch.float64)
    advantages = torch.full((1,), advantage, dtype=torch.float64)
    centered_reinforce_loss(logprobs[action].reshape(1), advantages, weights, term).sum().backward()
    return -logits.grad


seeds = st.integers(0, 2**31)
vocabularies = st.integers(2, 9)
weight_names = st.sampled_from(sorted(WEIGHTS))
