"""Batches that a learner's own model samples: a task of ten lines and no engine, to see an algorithm learn."""

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.learner.packing import pack_sequences

VOCABULARY = 263


def share_of_low_ids(responses):
    """The reward: the share of tokens in the lower half of the vocabulary."""
    return (responses < VOCABULARY // 2).mean(1)


@torch.no_grad()
def sample(policy, *, version, groups=8, group_size=8, length=4, seed=0) -> RolloutBatch:
    """Responses of `length` tokens to random prompts of 3, with log q of the whole vocabulary as their head.

    Args:
        policy: a `PackedCausalLM`.
        version: of its weights; with `seed` it decides prompts and samples.
        groups, group_size, length: sizes.
        seed: of the run.
    """
    generator = torch.Generator().manual_seed(1000 * seed + version)
    count = groups * group_size
    prompts = torch.randint(7, VOCABULARY, (groups, 3), generator=generator).repeat_interleave(group_size, 0).numpy()
    responses, rollout_logprobs, heads = np.zeros((count, 0), np.int64), [], []
    everything = torch.arange(VOCABULARY)
    for _ in range(length):
        # The token to be sampled stands as a placeholder at the end; the row before it predicts it.
        so_far = batch_of(prompts, np.concatenate([responses, np.zeros((count, 1), np.int64)], 1), version)
        sequences = pack_sequences(so_far)
        rows = len(sequences.predicting)
        output = policy(sequences, temperature=1.0, head_ids=everything.expand(rows, -1))
        logprobs = output.head_logprobs.view(count, -1, VOCABULARY)[:, -1]
        chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
        responses = np.concatenate([responses, chosen.numpy()], 1)
        rollout_logprobs.append(logprobs.gather(1, chosen).numpy())
        heads.append(logprobs.numpy())
    return batch_of(prompts, responses, version, np.concatenate(rollout_logprobs, 1), np.stack(heads, 1))


def batch_of(prompts, responses, version, rollout_logprobs=None, heads=None):
    count, length = responses.shape
    tokens = count * length
    return RolloutBatch(
        sample_ids=np.arange(count, dtype=np.int64),
        group_ids=np.unique(prompts, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64),
        prompt_lengths=np.full(count, prompts.shape[1], np.int64),
        response_lengths=np.full(count, length, np.int64),
        rewards=share_of_low_ids(responses),
        finish_reasons=np.ones(count, np.uint8),
        prompt_ids=prompts.reshape(-1).astype(np.int64),
        response_ids=responses.reshape(-1),
        loss_mask=np.ones(tokens, np.bool_),
        rollout_logprobs=np.zeros(tokens, np.float32) if rollout_logprobs is None else rollout_logprobs.reshape(-1),
        weight_versions=np.full(tokens, version, np.int64),
        head_ids=None if heads is None else np.tile(np.arange(VOCABULARY, dtype=np.int32), (tokens, 1)),
        head_logprobs=None if heads is None else heads.reshape(tokens, VOCABULARY),
    )
