"""GRPO: group-relative policy optimization (arXiv 2402.03300)."""

from rlhf_algos.algorithms.grpo.grpo import GRPO, GRPOConfig

__all__ = ["GRPO", "GRPOConfig"]
