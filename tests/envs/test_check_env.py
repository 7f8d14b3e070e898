"""check_env: all our environments pass; each promise broken once is named."""

import itertools
import re
import runpy
import warnings
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest

from rlhf_algos.envs import PromptEnv, RewardError, check_env
from rlhf_algos.envs.registration import BUNDLED

ROOT = Path(__file__).parents[2]


class Good(PromptEnv):
    counter: ClassVar = itertools.count()

    def prompt(self, rng):
        return f"n={rng.integers(1000000)}"

    def reward(self, response):
        return float(len(response))


class Bad(Good):
    """Each class below breaks one promise."""


class Stateful(Bad):
    def prompt(self, rng):
        return f"n={next(self.counter)}"


class Blind(Bad):
    heldout_fraction = 0.0

    def prompt(self, rng):
        return "always"


class Picky(Bad):
    def reward(self, response):
        return 1.0 if response != "\n" else 1 / 0


class Speechless(Bad):
    def reward(self, response):
        return None if response == "客🙂" else 1.0


class Private(Bad):
    def __init__(self):
        super().__init__()


class NoEnd(Bad):
    def step(self, response):
        return "", 0.0, True, False, {}


class Leaky(Bad):
    num_problems = 3

    def prompt_at(self, index):
        return f"n={index}"


class Unseeded(Bad):
    """The rng of prompt() is not the whole truth: every reset after the first gives another prompt."""

    def reset(self, *, seed=None, options=None):
        prompt, info = super().reset(seed=seed, options=options)
        return (f"{prompt} {next(self.counter)}" if seed in range(20) else prompt), info


class OneWanders(Bad):
    """Only one index is not fixed."""

    heldout_fraction = 0.0

    def prompt_at(self, index):
        return f"n={next(self.counter)}" if index == 5 else f"n={index}"


class Stepping(Bad):
    """Returns what `change` makes of a good step's result."""

    change: ClassVar = staticmethod(lambda result: result)

    def step(self, response):
        return self.change(super().step(response))


def stepping(position, value):
    def change(result):
        return (*result[:position], value, *result[position + 1 :])

    return type("Stepping", (Stepping,), {"change": staticmethod(change)})


class HalfTruncated(Bad):
    """Gymnasium's checker only looks at one sampled response."""

    def step(self, response):
        return (*super().step(response)[:3], None if response == "客🙂" else False, {})


class Silent(Bad):
    def reset(self, **kwargs):
        super().reset(**kwargs)
        return "", {}


class BadInfo(Bad):
    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], None


@pytest.mark.parametrize("env_id", sorted(BUNDLED))
def test_every_registered_environment(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env_id)


def test_the_example():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = runpy.run_path(str(ROOT / "examples/my_environment.py"))
        check_env("my/Reverse-v0")
        check_env(module["Reverse"])
    del gymnasium.registry["my/Reverse-v0"]


def test_a_chat_environment():
    class Chat(Good):
        def prompt(self, rng):
            return [{"role": "user", "content": f"客🙂 {rng.integers(100000)}"}]

    check_env(Chat)


def test_a_conversation():
    class Twice(Good):
        def reset(self, **kwargs):
            self.turn = 0
            return super().reset(**kwargs)

        def step(self, response):
            self.turn += 1
            self.checked_reward(response)
            return super().step(response) if self.turn == 2 else ("again", 0.0, False, False, {})

    check_env(Twice)


BROKEN = {
    Stateful: "Using `env.reset(seed=123)` is non-deterministic as the observations are not equivalent.",
    Blind: "Blind: 20 seeds all gave 'always'. Draw the prompt with the rng of prompt().",
    Unseeded: (
        "Unseeded: reset(seed=0) returned '{0} #', then '{0} #'. The prompt may depend on the rng that "
        "prompt() receives and on nothing else, or a group has several prompts."
    ),
    NoEnd: "NoEnd: step() outside an episode must raise gymnasium.error.ResetNeeded.",
    stepping(0, 3): "Stepping: step() returned observation=3, not text or chat messages.",
    stepping(1, 1): "Stepping: step('') returned reward=1, not a finite float.",
    stepping(1, True): "Stepping: step('') returned reward=True, not a finite float.",
    stepping(1, float("inf")): "Stepping: step('') returned reward=inf, not a finite float.",
    stepping(2, 1): "Stepping: step() returned terminated=1, not True or False.",
    HalfTruncated: "HalfTruncated: step() returned truncated=None, not True or False.",
    stepping(2, False): "Stepping: step() goes on (terminated=False) with nothing to read.",
    stepping(4, []): "The `info` returned by `step()` must be a python dictionary, actual type: <class 'list'>",
    Silent: "Silent: reset(seed=0) returned '', not a non-empty prompt.",
    BadInfo: ("The second element returned by `env.reset()` was not a dictionary, actual type: <class 'NoneType'>"),
    OneWanders: ("OneWanders: index=5 gave 'n=#', then 'n=#'. An evaluation needs fixed problems."),
    Leaky: (
        "Leaky: problem 0, 'n=0', does not belong to split='heldout', so an evaluation would play what is trained on. "
        "Let prompt_at() and num_problems count the problems of this split alone: those for which "
        "self.in_split(prompt) is true."
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("env", BROKEN, ids=lambda env: env.__name__)
def test_broken_promise(env):
    with pytest.raises(AssertionError) as caught:
        check_env(env)
    first = Good().reset(seed=0)[0]
    expected = re.escape(BROKEN[env].replace("{0}", first)).replace(r"\#", r"\d+")
    assert re.fullmatch(expected, str(caught.value)), str(caught.value)


def test_reward_that_changes():
    """Gymnasium's checker would see most of these: here it only happens for one of the odd responses."""

    class Moody(Good):
        def reward(self, response):
            return float(next(self.counter)) if response == "\x00" else 0.0

    with pytest.raises(AssertionError) as caught:
        check_env(Moody)
    message = r"Moody: response='\\x00' after reset\(seed=7\) has reward \d+\.0, then \d+\.0\."
    assert re.fullmatch(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Picky, r"Picky: the reward function raised ZeroDivisionError: .* response='\\n'\)\."),
        (Speechless, r"Speechless: the reward is None, it must be a finite number .* response='客🙂'\)\."),
    ],
)
def test_response_that_can_not_be_scored(env, message):
    with pytest.raises(RewardError) as caught:
        check_env(env)
    assert re.fullmatch(message, str(caught.value)), str(caught.value)


def test_not_a_prompt_env():
    with pytest.raises(AssertionError, match=r"^CartPoleEnv is not a PromptEnv\.$"):
        check_env(gymnasium.make("CartPole-v1"))


def test_an_instance_can_be_checked_but_for_its_splits():
    message = "Good: splits not checked, since an instance can't be built again. Pass the class or the id."
    with pytest.warns(UserWarning, match=re.escape(message)):
        check_env(Good())


def test_a_constructor_without_split_is_told():
    message = (
        "Private: the constructor takes no `split`, so nothing can be held out. Accept **kwargs and pass "
        "them on: super().__init__(**kwargs)."
    )
    with pytest.warns(UserWarning, match=re.escape(message)):
        check_env(Private)
