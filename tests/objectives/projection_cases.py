"""Inputs and the slow reference for the tests of chunked log-probabilities."""

import torch


def make(tokens=11, vocabulary=50, width=7, head=6, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    head_ids = torch.randint(vocabulary, (tokens, head), generator=generator)
    return randn(tokens, width), randn(vocabulary, width), randn(vocabulary), targets, head_ids


def plain(hidden, weight, targets, *, temperature=1.0, bias=None, head_ids=None):
    """The same by full log_softmax: log-probs, head log-probs, entropy."""
    logits = hidden @ weight.t() if bias is None else hidden @ weight.t() + bias
    logprobs = torch.log_softmax(logits / temperature, -1)
    head = None if head_ids is None else logprobs.gather(1, head_ids)
    return logprobs.gather(1, targets[:, None])[:, 0], head, -(logprobs.exp() * logprobs).sum(-1)
