"""The seed of a run that was given none."""

from __future__ import annotations

import secrets
from typing import TypeVar

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

Config = TypeVar("Config", bound=AlgorithmConfig)


def with_seed(config: Config) -> Config:
    """The configuration itself, or, if it has no seed, a copy with a drawn one; frozen if it was.

    Every run draws its own, from the operating system: what seeded runs left in the process's generators has no part
    in it. The seed stands in the run's configuration and results, and repeats the run.
    """
    if config.seed is not None:
        return config
    seeded = config.copy(copy_frozen=False)
    seeded.seed = secrets.randbelow(2**31)
    if config._is_frozen:
        seeded.freeze()
    return seeded
