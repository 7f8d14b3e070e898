"""The environments of a group's members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium

from rlhf_algos.envs import Prompt, PromptEnv


def task_of(environment: gymnasium.Env[Any, str]) -> PromptEnv:
    """What stands inside the wrappers."""
    return cast(PromptEnv, environment.unwrapped)


def require_same_prompts(
    group_ids: Sequence[int], prompts: Sequence[Prompt], environments: Sequence[gymnasium.Env[Any, str]]
) -> None:
    """Raises unless all members of a group were reset to one prompt.

    Raises:
        ValueError: names the environment, the group and two of its prompts.
    """
    first: dict[int, Prompt] = {}
    for group, prompt, environment in zip(group_ids, prompts, environments, strict=True):
        if first.setdefault(group, prompt) != prompt:
            raise ValueError(
                f"{task_of(environment).name}: the members of group {group} were reset with one seed "
                f"and got different prompts, {first[group]!r} and {prompt!r}. Their rewards can't be compared. Draw "
                "everything with the rng of prompt(): nothing from a generator of its own or a list that is used up. "
                "rlhf_algos.envs.check_env(...) finds this without a run."
            )
