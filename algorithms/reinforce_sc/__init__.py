"""REINFORCE with score centering (arXiv 2609.20807)."""

from rlhf_algos.algorithms.reinforce_sc.reinforce_sc import ReinforceSC, ReinforceSCConfig

__all__ = ["ReinforceSC", "ReinforceSCConfig"]
