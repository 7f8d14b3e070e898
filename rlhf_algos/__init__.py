"""Reinforcement learning for language models whose sampler and trainer disagree.

Importing this package loads neither torch, vLLM, DeepSpeed nor Ray; its parts do, each on its own import.
"""

import os

__version__ = "0.1.0"

# Before torch is loaded, in this process and in those that Ray starts from it. Sampler and learner share the cores, and
# an OpenMP thread that waits for another one would otherwise spin on the core that the other one needs: with two
# threads on two busy cores a small model's step takes thirteen times the CPU time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
