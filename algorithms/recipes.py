"""Settings that were tried: the bundled model on the bundled task, on two CPU cores."""

from __future__ import annotations

from typing import TypeVar

from rlhf_algos.algorithms.interface import LanguageModelAlgorithmConfig

Config = TypeVar("Config", bound=LanguageModelAlgorithmConfig)

#: Held-out problems of two-digit addition.
HELD_OUT_PROBLEMS = 827


def addition(
    config: Config,
    *,
    iterations: int,
    seed: int = 0,
    prompts_per_iteration: int = 64,
    evaluation_problems: int = HELD_OUT_PROBLEMS,
) -> Config:
    """Two-digit addition with the bundled model, evaluated on problems that training never sees.

    The learning rate falls linearly from 3e-4 to 0 over the run: with a constant one the last steps undo greedy
    accuracy that the first ones won.

    Args:
        config: of any algorithm; it is changed and returned.
        iterations: length of the run, which the schedule needs.
        seed: of the run.
        prompts_per_iteration: groups of 8 responses in an iteration.
        evaluation_problems: how many held-out problems an evaluation plays.

    >>> from rlhf_algos.algorithms.grpo import GRPOConfig
    >>> addition(GRPOConfig(), iterations=10).lr
    [[0, 0.0003], [5120, 0.0]]
    """
    group_size = 8
    config.environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
    config.language_model("rlhf_algos/tiny-moe", dtype="float32")
    config.sampling(temperature=1.0, max_response_tokens=8)
    config.vllm(dtype="float32", max_model_len=64)
    config.training(
        lr=[[0, 3e-4], [prompts_per_iteration * group_size * iterations, 0.0]],
        prompts_per_iteration=prompts_per_iteration,
        group_size=group_size,
    )
    config.evaluation(
        evaluation_duration=evaluation_problems,
        evaluation_config={"env_config": {"digits": 2, "split": "heldout"}},
    )
    return config.debugging(seed=seed)
