"""NaN and infinity stop the run where they are seen, and name the sample (MATH 9)."""

from __future__ import annotations

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.learner.packing import as_tensor


def require_finite(what: str, values: torch.Tensor, mask: torch.Tensor, sample_ids: torch.Tensor) -> None:
    """Raises unless `values` `[T]` are finite wherever `mask` `[T]` is True.

    Raises:
        ValueError: names `what`, the value, the sample and the token's place among the sample's tokens.
    """
    bad = ~torch.isfinite(values.detach()) & mask
    if not bad.any():
        return
    row = int(bad.nonzero()[0, 0])
    sample = int(sample_ids[row])
    place = int((sample_ids[:row] == sample).sum())
    raise ValueError(
        f"The {what} of token {place} of sample {sample} is {float(values[row])}. It is trained on, so the step was "
        f"stopped ({int(bad.sum())} such tokens in this micro-batch). Nothing was replaced or skipped."
    )


def require_finite_batch(batch: RolloutBatch) -> None:
    """Raises unless rewards, advantages and what the sampler recorded at trained tokens are finite.

    Raises:
        ValueError: names the sample and the value.
    """
    trained = batch.trained_tokens_of_samples > 0
    per_sample = {"reward": batch.rewards, "advantage": batch.advantages}
    for name, values in per_sample.items():
        if values is None:
            raise ValueError(f"The batch has no {name}s.")
        bad = np.flatnonzero(~np.isfinite(values) & trained)
        if len(bad):
            raise ValueError(f"The {name} of sample {batch.sample_ids[bad[0]]} is {values[bad[0]]}; step stopped.")
    mask = as_tensor(batch.loss_mask)
    sample_ids = as_tensor(batch.sample_ids[batch.token_sample_index])
    require_finite("rollout log-probability", as_tensor(batch.rollout_logprobs), mask, sample_ids)
    if batch.head_logprobs is not None:
        # The sum is finite if and only if every entry is: one value per token is enough to name it.
        with np.errstate(invalid="ignore"):
            head_sums = as_tensor(batch.head_logprobs.astype(np.float64).sum(axis=1))
        require_finite("recorded head's sum of log-probabilities", head_sums, mask, sample_ids)
    if batch.support_logprobs is not None and batch.support_lengths is not None:
        of_support = np.repeat(np.arange(batch.num_response_tokens), batch.support_lengths)
        support_sums = np.zeros(batch.num_response_tokens)
        with np.errstate(invalid="ignore"):
            np.add.at(support_sums, of_support, batch.support_logprobs.astype(np.float64))
        require_finite("recorded support's sum of log-probabilities", as_tensor(support_sums), mask, sample_ids)
