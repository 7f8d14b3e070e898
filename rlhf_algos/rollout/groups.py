"""What stands inside the wrappers of environments, and what members of a group must have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium

from rlhf_algos.envs import Prompt, PromptEnv


def task_of(environment: gymnasium.Env[Any, str]) -> PromptEnv:
    """What stands inside the wrappers."""
    return cast(PromptEnv, environment.unwrapped)


@dataclass(frozen=True)
class TaskFacts:
    """What a player needs to know of a task, wherever its environments run.

    Attributes:
        name: for messages.
        split, split_rule: which problems are drawn; equal rules hold out the same ones.
        num_problems: of the split; None without end.
        control_tokens_in_prompt, special_tokens_in_response: the choices of `PromptEnv`.
    """

    name: str
    split: str
    split_rule: str
    num_problems: int | None
    control_tokens_in_prompt: str
    special_tokens_in_response: str


def facts_of(environment: gymnasium.Env[Any, str]) -> TaskFacts:
    """The facts of an environment's task."""
    task = task_of(environment)
    return TaskFacts(
        name=task.name,
        num_problems=task.num_problems,
        control_tokens_in_prompt=task.control_tokens_in_prompt,
        special_tokens_in_response=task.special_tokens_in_response,
        **split_facts(task),
    )


def split_facts(task: PromptEnv) -> dict[str, str]:
    """The split of a task, and what decides which problems are in it: equal rules hold out the same problems."""
    key = type(task).problem_key
    return {
        "split": task.split,
        "split_rule": f"{key.__module__}.{key.__qualname__} of {type(task).__qualname__}, {task.heldout_fraction:g}",
    }


def require_same_prompts(group_ids: Sequence[int], prompts: Sequence[Prompt], name: str) -> None:
    """Raises unless all members of a group were reset to one prompt.

    Args:
        group_ids: of the episodes.
        prompts: theirs.
        name: of the environment.

    Raises:
        ValueError: names the environment, the group and two of its prompts.
    """
    first: dict[int, Prompt] = {}
    for group, prompt in zip(group_ids, prompts, strict=True):
        if first.setdefault(group, prompt) != prompt:
            raise ValueError(
                f"{name}: the members of group {group} were reset with one seed "
                f"and got different prompts, {first[group]!r} and {prompt!r}. Their rewards can't be compared. Draw "
                "everything with the rng of prompt(): nothing from a generator of its own or a list that is used up. "
                "rlhf_algos.envs.check_env(...) finds this without a run."
            )
