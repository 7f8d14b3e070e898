"""Objectives: pure functions on tensors. No configuration, I/O or state; imports torch only."""

from rlhf_algos.objectives.advantages import group_advantages, zero_std_group_fraction
from rlhf_algos.objectives.chunked_logprobs import ChunkedLogprobs, chunked_logprobs
from rlhf_algos.objectives.kl_penalty import kl_estimate
from rlhf_algos.objectives.mismatch import finalize_mismatch, mismatch_sums
from rlhf_algos.objectives.policy_losses import ppo_clip_loss, reinforce_loss, sequence_clip_loss
from rlhf_algos.objectives.reduction import loss_weights, reduce_loss
from rlhf_algos.objectives.score_centering import (
    centered_reinforce_loss,
    renormalize_on_support,
    score_centering_term,
)

__all__ = [
    "ChunkedLogprobs",
    "centered_reinforce_loss",
    "chunked_logprobs",
    "finalize_mismatch",
    "group_advantages",
    "kl_estimate",
    "loss_weights",
    "mismatch_sums",
    "ppo_clip_loss",
    "reduce_loss",
    "reinforce_loss",
    "renormalize_on_support",
    "score_centering_term",
    "sequence_clip_loss",
    "zero_std_group_fraction",
]
