"""Responses of the last iteration, token by token, for a person to look at."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import AutoTokenizer

from rlhf_algos.batch import RolloutBatch


def shown_responses(
    batch: RolloutBatch, old_logprobs: dict[int, list[float]], model: str, *, trust_remote_code: bool
) -> list[dict[str, Any]]:
    """Prompt, reward and, per token, text, log q and log p0 of the samples whose log p0 is known.

    Args:
        batch: that was trained on.
        old_logprobs: by sample id, one number per trained token.
        model: directory or hub id, whose tokenizer made the batch.
        trust_remote_code: run code that ships with the model.
    """
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    prompts = np.split(batch.prompt_ids, np.cumsum(batch.prompt_lengths)[:-1])
    starts = np.cumsum(batch.response_lengths) - batch.response_lengths
    shown = []
    for sample, logprobs in sorted(old_logprobs.items()):
        place = int(np.flatnonzero(batch.sample_ids == sample)[0])
        rows = np.arange(starts[place], starts[place] + batch.response_lengths[place])
        rows = rows[batch.loss_mask[rows]]
        shown.append(
            {
                "prompt": tokenizer.decode(prompts[place].tolist()),
                "reward": float(batch.rewards[place]),
                "tokens": [tokenizer.decode([token]) for token in batch.response_ids[rows].tolist()],
                "rollout_logprobs": batch.rollout_logprobs[rows].tolist(),
                "old_logprobs": logprobs,
            }
        )
    return shown
