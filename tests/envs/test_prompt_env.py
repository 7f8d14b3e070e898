"""PromptEnv: episodes, rewards, splits and indices."""

import math
import re
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

from rlhf_algos.envs import PromptEnv, RewardError, make_prompt_env
from rlhf_algos.envs.splits import split_of


class Count(PromptEnv):
    """The reward is whatever the test puts into `answer`, which may raise."""

    answer: ClassVar = 1.0

    def prompt(self, rng):
        return f"n={rng.integers(100000)}"

    def reward(self, response):
        return self.answer() if callable(self.answer) else self.answer


class Chat(Count):
    def prompt(self, rng):
        return [
            {"role": "system", "content": "客"},
            {"role": "user", "content": f"🙂 {rng.integers(100000)}"},
        ]


class Fixed(Count):
    def prompt(self, rng):
        return "always the same"


def with_answer(answer):
    return type("Count", (Count,), {"answer": staticmethod(answer) if callable(answer) else answer})()


def test_one_step_ends_the_episode():
    env = Count()
    prompt, info = env.reset(seed=0)
    assert re.fullmatch(r"n=\d+", prompt) and info == {}
    assert env.step("any") == ("", 1.0, True, False, {})


def test_chat_prompts_end_with_no_further_messages():
    env = Chat()
    prompt, _ = env.reset(seed=0)
    assert [message["role"] for message in prompt] == ["system", "user"]
    assert env.step("客🙂")[0] == []


def test_group_members_reset_with_one_seed_get_one_prompt():
    assert len({Count().reset(seed=7)[0] for _ in range(8)}) == 1


def test_reset_without_seed_goes_on():
    env = Count()
    prompts = [env.reset(seed=7)[0], *(env.reset()[0] for _ in range(5))]
    assert len(set(prompts)) == 6
    again = Count()
    assert prompts == [again.reset(seed=7)[0], *(again.reset()[0] for _ in range(5))]


@pytest.mark.parametrize("before", [[], ["reset", "step"]])
def test_step_outside_an_episode(before):
    env = Count()
    for call in before:
        env.reset() if call == "reset" else env.step("a")
    message = "Count: call reset() before step(), and again after each episode's end."
    with pytest.raises(ResetNeeded, match=f"^{re.escape(message)}$"):
        env.step("a")


def test_response_must_be_text():
    env = Count()
    env.reset()
    with pytest.raises(TypeError, match=r"^Count: response=\[1, 2\] is a list, not a str\.$"):
        env.step([1, 2])


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "1.0", [1.0], 1j, np.float32("nan")])
def test_reward_that_is_no_number_names_env_prompt_and_response(value):
    env = with_answer(value)
    prompt, _ = env.reset(seed=0)
    message = (
        f"Count: the reward is {value!r}, it must be a finite number (prompt={prompt!r}, response='my 客 answer')."
    )
    with pytest.raises(RewardError, match=f"^{re.escape(message)}$"):
        env.step("my 客 answer")


def test_reward_that_raises_names_env_prompt_and_response():
    env = with_answer(lambda: 1 / 0)
    prompt, _ = env.reset(seed=0)
    message = (
        f"Count: the reward function raised ZeroDivisionError: division by zero (prompt={prompt!r}, response='r')."
    )
    with pytest.raises(RewardError, match=f"^{re.escape(message)}$") as caught:
        env.step("r")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_reward_error_names_the_registered_id():
    gymnasium.register("test/NoReward-v3", type("NoReward", (Count,), {"answer": None}))
    try:
        env = make_prompt_env("test/NoReward-v3")
        env.reset(seed=0)
        with pytest.raises(RewardError, match=r"^test/NoReward-v3: the reward is None, it must be a finite"):
            env.step("r")
    finally:
        del gymnasium.registry["test/NoReward-v3"]


@pytest.mark.parametrize("value", [1, True, np.float32(0.5), np.int64(3), np.bool_(True), -2.5])
def test_numbers_of_any_kind_become_float(value):
    env = with_answer(value)
    env.reset()
    reward = env.step("r")[1]
    assert type(reward) is float and reward == value


@pytest.mark.parametrize("prompt", ["", [], None, 3, "\ud800", [{"role": "user"}], [{"role": "", "content": "x"}]])
def test_prompt_that_is_none(prompt):
    env = type("Bad", (Count,), {"prompt": lambda self, rng: prompt})(split="all")
    message = (
        f"Bad: prompt={prompt!r} is no prompt. It must be non-empty text, or a non-empty list of messages "
        "with the texts 'role' and 'content', without lone surrogates."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        env.reset()


@given(st.text(min_size=1))
def test_any_unicode_prompt(text):
    env = type("Any", (Count,), {"prompt": lambda self, rng: text})(split="all")
    prompt, _ = env.reset(seed=0)
    assert prompt == text and prompt in env.observation_space and prompt in env.action_space


@pytest.mark.parametrize("kind", [Count, Chat])
def test_splits_share_no_problem_and_all_has_both(kind):
    def keys(split):
        env = kind(split=split)
        return {env.problem_key(env.reset(seed=seed)[0]) for seed in range(300)}

    train, heldout, both = keys("train"), keys("heldout"), keys("all")
    assert not train & heldout
    assert both & train and both - train


def test_the_share_that_is_held_out():
    keys = [f"problem {index}" for index in range(4000)]
    for fraction in (0.0, 0.1, 0.5, 1.0):
        share = np.mean([split_of(key, fraction) == "heldout" for key in keys])
        assert abs(share - fraction) <= 0.03 * (0 < fraction < 1)


def test_the_share_is_the_classs_own():
    env = type("Half", (Count,), {"heldout_fraction": 0.5})()
    heldout = type("Half", (Count,), {"heldout_fraction": 0.5})(split="heldout")
    assert all(split_of(env.reset(seed=seed)[0], 0.5) == "train" for seed in range(50))
    assert any(split_of(heldout.reset(seed=seed)[0], 0.1) == "train" for seed in range(50))


def test_train_is_the_default_split():
    assert Count().split == "train"


def test_unknown_split():
    with pytest.raises(ValueError, match=r"^split='test': must be one of 'train', 'heldout', 'all'\.$"):
        Count(split="test")


def test_too_few_problems_for_a_split():
    splits = {}
    for split in ("train", "heldout"):
        try:
            splits[split] = Fixed(split=split).reset()[0]
        except RuntimeError as error:
            splits[split] = str(error)
    assert splits == {
        "train": "always the same",
        "heldout": "Fixed: none of 1000 prompts belongs to split='heldout'. The task has too few problems "
        'for heldout_fraction=0.1: add some, or build it with split="all".',
    }
    assert Fixed(split="all").reset()[0] == "always the same"


def test_an_index_names_one_problem_and_leaves_the_seeded_draws_alone():
    env, other = Count(), Count()
    plain = [env.reset(seed=3)[0], env.reset()[0]]
    mixed = [other.reset(seed=3)[0]]
    by_index = [other.reset(options={"index": index})[0] for index in range(10)]
    mixed.append(other.reset()[0])
    assert plain == mixed
    assert len(set(by_index)) == 10
    assert [Count().reset(options={"index": index})[0] for index in range(10)] == by_index
    assert not set(by_index) & {env.reset(seed=seed)[0] for seed in range(10)}


@pytest.mark.parametrize("index", [-1, 1.5, "3", True])
def test_index_that_is_none(index):
    with pytest.raises(ValueError, match=rf"^Count: index={index!r} must be a whole number, 0 or above\.$"):
        Count().reset(options={"index": index})


def test_index_beyond_the_problems():
    env = Count()
    env.num_problems = 3
    env.reset(options={"index": 2})
    with pytest.raises(ValueError, match=r"^Count: index=3 is outside the 3 problems of split='train'\.$"):
        env.reset(options={"index": 3})


def test_unknown_reset_option():
    with pytest.raises(ValueError, match=r"^Count: unknown reset options \['split'\]; the only one is 'index'\.$"):
        Count().reset(options={"split": "heldout"})


def test_a_task_without_methods_says_what_to_define():
    with pytest.raises(NotImplementedError, match=r"^PromptEnv must define prompt\(self, rng\)"):
        PromptEnv().reset()
    env = type("Half", (PromptEnv,), {"prompt": lambda self, rng: "p"})(split="all")
    env.reset()
    with pytest.raises(RewardError, match=r"Half must define reward\(self, response\)"):
        env.step("r")


def test_several_turns_by_overriding_step():
    class TwoTurns(Count):
        def reset(self, **kwargs):
            self.turns = 0
            return super().reset(**kwargs)

        def step(self, response):
            self.turns += 1
            if self.turns == 1:
                return "Are you sure? ", 0.0, False, False, {}
            return super().step(response)

    env = TwoTurns()
    env.reset(seed=0)
    assert env.step("a") == ("Are you sure? ", 0.0, False, False, {})
    assert env.step("b") == ("", 1.0, True, False, {})
