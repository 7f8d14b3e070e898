"""`check_env`: does a task keep the promises that training relies on?"""

import inspect
import math
from typing import cast

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from rlhf_algos.envs.prompt_env import PromptEnv
from rlhf_algos.envs.registration import EnvSource, make_prompt_env
from rlhf_algos.envs.spaces import Prompt

Env = gymnasium.Env[Prompt, str]

ODD_RESPONSES = ("", "客🙂", "\ufffd", "\n", " 0 ", "x" * 10_000, '{"a": [1', "\x00")
SEEDS = range(20)
INDICES = range(20)


def check_env(env: Env | EnvSource) -> None:
    """Checks a task, first with Gymnasium's own checker, then for what training relies on.

    Args:
        env: An environment, or anything `make_prompt_env` takes: an id, a `PromptEnv` class, a function.

    Raises:
        AssertionError: The first broken promise, naming the environment and the values.
        RewardError: An odd response (empty, very long, any Unicode, broken JSON) can't be scored.
    """
    env = env if isinstance(env, gymnasium.Env) else make_prompt_env(env)
    if not isinstance(env.unwrapped, PromptEnv):
        raise AssertionError(f"{type(env.unwrapped).__name__} is not a PromptEnv.")
    name = env.unwrapped.name
    check_special_tokens(env)
    check_step_before_reset(env, name)
    gymnasium_check_env(env.unwrapped, skip_render_check=True)
    check_prompts(env, name)
    check_rewards(env, name)
    check_indices(env, name)
    check_splits(env, name)


def check_special_tokens(env: Env) -> None:
    """Checks the choices about special tokens, which a constructor of its own may not have passed on."""
    try:
        cast("PromptEnv", env.unwrapped).check_special_tokens()
    except ValueError as error:
        raise AssertionError(str(error)) from None


def check_step_before_reset(env: Env, name: str) -> None:
    """Checks that a step outside an episode is an error, before the first reset and after the last step."""
    try:
        env.reset(seed=0)
        for _ in range(1000):
            *_, terminated, truncated, _ = env.step("")
            if terminated or truncated:
                break
        env.step("")
    except ResetNeeded:
        return
    raise AssertionError(f"{name}: step() outside an episode must raise gymnasium.error.ResetNeeded.")


def check_prompts(env: Env, name: str) -> None:
    """Checks that a seed decides the prompt and that not every seed gives the same one."""
    prompts = []
    for seed in SEEDS:
        prompt, info = env.reset(seed=seed)
        again, _ = env.reset(seed=seed)
        if not prompt or prompt not in env.unwrapped.observation_space:
            raise AssertionError(f"{name}: reset(seed={seed}) returned {prompt!r}, not a non-empty prompt.")
        if prompt != again:
            raise AssertionError(
                f"{name}: reset(seed={seed}) returned {prompt!r}, then {again!r}. The prompt may depend on "
                "the rng that prompt() receives and on nothing else, or a group has several prompts."
            )
        if not isinstance(info, dict):
            raise AssertionError(f"{name}: reset() returned info={info!r}, not a dict.")
        prompts.append(prompt)
    if all(prompt == prompts[0] for prompt in prompts):
        raise AssertionError(
            f"{name}: {len(prompts)} seeds all gave {prompts[0]!r}. Draw the prompt with the rng of prompt()."
        )


def check_rewards(env: Env, name: str) -> None:
    """Checks every odd response twice: types, a finite reward, and the same reward again."""
    for seed, response in enumerate(ODD_RESPONSES):
        first, second = step_once(env, name, seed, response), step_once(env, name, seed, response)
        if first != second:
            raise AssertionError(
                f"{name}: response={response[:40]!r} after reset(seed={seed}) has reward {first}, then {second}."
            )


def step_once(env: Env, name: str, seed: int, response: str) -> float:
    """The reward of one response, after a check of everything `step` returned."""
    env.reset(seed=seed)
    observation, reward, terminated, truncated, info = env.step(response)
    if isinstance(reward, bool) or not isinstance(reward, float) or not math.isfinite(reward):
        raise AssertionError(f"{name}: step({response[:40]!r}) returned reward={reward!r}, not a finite float.")
    for option, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, bool):
            raise AssertionError(f"{name}: step() returned {option}={value!r}, not True or False.")
    if not isinstance(info, dict):
        raise AssertionError(f"{name}: step() returned info={info!r}, not a dict.")
    if observation not in env.unwrapped.observation_space:
        raise AssertionError(f"{name}: step() returned observation={observation!r}, not text or chat messages.")
    if not terminated and not truncated and not observation:
        raise AssertionError(f"{name}: step() goes on (terminated=False) with nothing to read.")
    return reward


def check_indices(env: Env, name: str) -> None:
    """Checks that index i names one problem, whatever was drawn before."""
    limit = cast("PromptEnv", env.unwrapped).num_problems
    indices = [index for index in INDICES if limit is None or index < limit]
    prompts = [prompt_at(env, index) for index in indices]
    for index in reversed(indices):
        env.reset(seed=index + 1)
        again = prompt_at(env, index)
        if again != prompts[index]:
            raise AssertionError(
                f"{name}: index={index} gave {prompts[index]!r}, then {again!r}. An evaluation needs fixed problems."
            )


def prompt_at(env: Env, index: int) -> Prompt:
    """The prompt of problem `index`; one of another split is a broken promise."""
    try:
        return env.reset(options={"index": index})[0]
    except ValueError as error:
        raise AssertionError(str(error)) from error


def check_splits(env: Env, name: str) -> None:
    """Checks that no held-out problem is a training problem, if the constructor lets one choose the split."""
    if env.spec is None:
        gymnasium.logger.warn(
            f"{name}: splits not checked, since an instance can't be built again. Pass the class or the id."
        )
        return
    if not accepts_split(env):
        gymnasium.logger.warn(
            f"{name}: the constructor takes no `split`, so nothing can be held out. "
            "Accept **kwargs and pass them on: super().__init__(**kwargs)."
        )
        return
    keys = {split: problem_keys(env, split) for split in ("train", "heldout")}
    common = sorted(keys["train"] & keys["heldout"])
    if common:
        raise AssertionError(f"{name}: {len(common)} problems are in both splits, for example {common[0]!r}.")


def problem_keys(env: Env, split: str) -> set[str]:
    """The keys of up to 40 problems of a split, by seed and by index."""
    assert env.spec is not None
    other = env.spec.make(split=split)
    task = cast("PromptEnv", other.unwrapped)
    keys = {task.problem_key(other.reset(seed=seed)[0]) for seed in SEEDS}
    indices = [index for index in INDICES if task.num_problems is None or index < task.num_problems]
    return keys | {task.problem_key(prompt_at(other, index)) for index in indices}


def accepts_split(env: Env) -> bool:
    """Tell whether the constructor has a `split` argument, by name or through `**kwargs`."""
    parameters = inspect.signature(type(env.unwrapped)).parameters.values()
    return any(p.name == "split" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
