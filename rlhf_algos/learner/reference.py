"""The frozen starting model that a KL penalty compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlhf_algos.learner.module import DTYPES, logprobs_of_responses
from rlhf_algos.learner.packing import MicroBatch
from rlhf_algos.learner.settings import LearnerSettings

if TYPE_CHECKING:
    from rlhf_algos.learner.policy import PackedCausalLM


def load_reference(settings: LearnerSettings, device: torch.device) -> PackedCausalLM | None:
    """The model as it is on disk, in the trainer's dtype, whole on every rank; None if there is no penalty."""
    if settings.kl_coefficient <= 0:
        return None
    from rlhf_algos.learner.policy import load_policy

    reference = load_policy(settings.model, dtype=DTYPES[settings.dtype], trust_remote_code=settings.trust_remote_code)
    return reference.requires_grad_(False).to(device)


@torch.no_grad()
def reference_logprobs(reference: PackedCausalLM, batch: MicroBatch, *, temperature: float) -> torch.Tensor:
    """log p of the frozen model, `[T]`, on the support that the batch was sampled from, like the policy's."""
    return logprobs_of_responses(reference, batch, temperature=temperature, with_entropy=False).logprobs
