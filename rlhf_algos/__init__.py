"""Reinforcement learning for language models whose sampler and trainer disagree.

Importing this package loads neither torch, vLLM, DeepSpeed nor Ray; its parts do, each on its own import.
"""

__version__ = "0.1.0"
