"""What all algorithms of this library share: their configuration and the loop from prompts to new weights."""

from rlhf_algos.algorithms.algorithm import LanguageModelAlgorithm
from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig
from rlhf_algos.learner.token_loss import LossTokens, TokenLoss

__all__ = ["LanguageModelAlgorithm", "LanguageModelAlgorithmConfig", "LossTokens", "TokenLoss"]
