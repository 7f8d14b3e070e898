"""From an environment to the batch: groups of one prompt, rewards as returned, texts as the reward sees them."""

import itertools
import random
import re
from fractions import Fraction
from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.driver.advantages import with_advantages
from rlhf_algos.driver.batch_metrics import lifetime_counts, rollout_metrics
from rlhf_algos.envs import PromptEnv, RewardError, check_env
from rlhf_algos.objectives import group_advantages
from tests.fake_engine import END, fake_runner


def toy_runner(env, answer=lambda request: [23, END], **training):
    """A rollout actor that plays groups of 4, unless told otherwise, on a table of answers."""
    config = GRPOConfig().environment(env).training(**{"group_size": 4, **training}).debugging(seed=0)
    config.validate()
    return fake_runner(config, answer)


class FromTheGlobalGenerator(PromptEnv):
    """Hidden randomness: not that of the rng it gets."""

    heldout_fraction = 0.0

    def prompt(self, rng):
        return f"{random.randint(10, 99)}="

    def reward(self, response):
        return 0.0


class FromAListThatIsUsedUp(FromTheGlobalGenerator):
    problems: ClassVar = []

    def prompt(self, rng):
        return self.problems.pop()


class FromARandomChat(FromTheGlobalGenerator):
    def prompt(self, rng):
        return [{"role": "user", "content": str(random.randint(10, 99))}]


class LengthIsReward(PromptEnv):
    def prompt(self, rng):
        return f"{rng.integers(10, 99)}="

    def reward(self, response):
        return float(len(response))


@pytest.mark.parametrize("env", [FromTheGlobalGenerator, FromAListThatIsUsedUp, FromARandomChat])
def test_a_group_with_different_prompts_is_an_error_before_anything_is_generated(env):
    random.seed(0)
    FromAListThatIsUsedUp.problems[:] = [f"{number}=" for number in range(1000)]
    runner = toy_runner(env)
    with pytest.raises(ValueError, match=rf"{env.__name__}: the members of group 7 .* different prompts") as error:
        runner.sample_groups([7, 8], weight_version=0)
    shown = re.findall(r"'(\d+=?)'", str(error.value))
    assert len(shown) == 2 and shown[0] != shown[1]
    assert "the rng of prompt()" in str(error.value) and "check_env" in str(error.value)
    assert runner.engine.requests == []


def test_the_group_that_is_named_is_the_one_at_fault():
    class SecondGroupWanders(LengthIsReward):
        heldout_fraction = 0.0
        counter: ClassVar = itertools.count()

        def prompt(self, rng):
            drawn = next(self.counter)
            return f"{drawn if drawn in (5, 6) else rng.integers(100, 999)}="

    with pytest.raises(ValueError, match=r"members of group 3 .* prompts, '\d{3}=' and '5='"):
        toy_runner(SecondGroupWanders).sample_groups([2, 3], weight_version=0)


def test_evaluation_and_groups_of_one_prompt_play_on():
    runner = toy_runner(LengthIsReward)
    batch, _ = runner.sample_groups([7, 8], weight_version=0)
    prompts = np.split(batch.prompt_ids, np.cumsum(batch.prompt_lengths)[:-1])
    assert [prompt.tolist() for prompt in prompts[:4]] == [prompts[0].tolist()] * 4
    assert prompts[4].tolist() != prompts[0].tolist()
    # One member per index: different prompts are what an evaluation is about.
    evaluated, _ = runner.sample_evaluation([0, 1, 2], greedy=False, weight_version=0)
    assert evaluated.num_samples == 3


def played(rewards, *, env=None, normalize_std=True, unscorable="stop"):
    """The batch of one group whose rewards an environment returns one after another, with advantages."""
    given = iter(rewards)

    class Given(LengthIsReward):
        def reward(self, response):
            return next(given)

    runner = toy_runner(env or Given, group_size=len(rewards), unscorable_responses=unscorable)
    batch, _ = runner.sample_groups([0], weight_version=0)
    rule = partial(group_advantages, normalize_std=normalize_std)
    return with_advantages(batch, rule, unscorable=unscorable)


@pytest.mark.parametrize(
    "rewards, advantages",
    [
        ([1, 1, 1, 1.0078125], [-0.57718] * 3 + [1.73154]),
        ([16777216.0, 16777217.0, 16777216.0, 16777217.0], [-1.0, 1.0, -1.0, 1.0]),
        ([1e39, 0.0, 0.0, 0.0], [1.73205] + [-0.57735] * 3),
        ([1e200, -1e200, 1e200, -1e200], [1.0, -1.0, 1.0, -1.0]),
        ([Fraction(1, 3), 0, 0, np.float64(1 / 3)], [1.0, -1.0, -1.0, 1.0]),
    ],
)
def test_advantages_come_from_the_numbers_that_were_returned(rewards, advantages):
    batch = played(rewards)
    assert batch.rewards.dtype == np.float64 and batch.rewards.tolist() == [float(reward) for reward in rewards]
    assert batch.advantages.dtype == np.float32
    assert batch.advantages == pytest.approx(advantages, abs=1e-5)
    assert rollout_metrics(batch)["zero_std_group_fraction"] == 0.0


def test_undivided_advantages_beyond_float32_stop_the_run_or_are_left_out():
    with pytest.raises(
        ValueError, match=r"rewards of group 0 lie further apart than float32 can hold: \[1e\+39, 0.0"
    ) as error:
        played([1e39, 0.0, 0.0, 0.0], normalize_std=False)
    # Advice that every algorithm can follow: RLOO refuses normalize_std=True.
    assert "normalize_std" not in str(error.value) and "unscorable_responses='leave_out'" in str(error.value)
    batch = played([1e39, 0.0, 0.0, 0.0], normalize_std=False, unscorable="leave_out")
    assert batch.advantages.tolist() == [0.0] * 4 and not batch.loss_mask.any()
    counts = lifetime_counts(batch, prompts_too_long=0, groups_sampled_again=0)
    assert counts["unscorable_responses_lifetime"] == 4
    near = played([1e39 + 0.0, 1e39, 1e39, 1e39], normalize_std=False)
    assert near.advantages.tolist() == [0.0] * 4 and near.loss_mask.all()


BAD_VALUES = [float("nan"), float("inf"), None, "1.0", np.array(1.0), np.array([1.0, 2.0]), 10**400, 1j]


class StepOfItsOwn(LengthIsReward):
    """Scores without `checked_reward`; the value of every fourth response is `bad`."""

    bad: ClassVar = None
    counter: ClassVar = itertools.count()

    def step(self, response):
        value = self.bad if next(self.counter) % 4 == 2 else 1.0
        return "", value, True, False, {}


class DividedByZero(gymnasium.RewardWrapper):
    def reward(self, reward):
        return float("nan") if next(StepOfItsOwn.counter) % 4 == 2 else reward


def wrapped():
    return DividedByZero(LengthIsReward())


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: f"{type(value).__name__}-{str(value)[:5]}")
def test_a_step_that_returns_no_finite_number_stops_the_run_or_is_left_out(value, monkeypatch):
    monkeypatch.setattr(StepOfItsOwn, "bad", value)
    monkeypatch.setattr(StepOfItsOwn, "counter", itertools.count())
    with pytest.raises(RewardError, match=r"StepOfItsOwn: the reward is .*must be a finite number .*sample 2 of group"):
        played([0] * 4, env=StepOfItsOwn)
    monkeypatch.setattr(StepOfItsOwn, "counter", itertools.count())
    batch = played([0] * 4, env=StepOfItsOwn, unscorable="leave_out")
    assert batch.scored.tolist() == [True, True, False, True]
    assert batch.loss_mask.tolist() == np.repeat(batch.scored, 2).tolist()


def test_a_wrapper_that_makes_nan_is_noticed(monkeypatch):
    gymnasium.register("tests/Wrapped-v0", entry_point=wrapped, order_enforce=False, disable_env_checker=True)
    try:
        monkeypatch.setattr(StepOfItsOwn, "counter", itertools.count())
        with pytest.raises(RewardError, match=r"the reward is nan, .*sample 2 of group 0, response='1'"):
            played([0] * 4, env="tests/Wrapped-v0")
        monkeypatch.setattr(StepOfItsOwn, "counter", itertools.count())
        batch = played([0] * 4, env="tests/Wrapped-v0", unscorable="leave_out")
        assert lifetime_counts(batch, prompts_too_long=0, groups_sampled_again=0)["unscorable_responses_lifetime"] == 1
    finally:
        gymnasium.registry.pop("tests/Wrapped-v0")


class Keeps(PromptEnv):
    """Keeps what it was asked to score."""

    heldout_fraction = 0.0
    seen: ClassVar = []

    def prompt(self, rng):
        return f"{rng.integers(10, 99)}<|end|>="

    def reward(self, response):
        self.seen.append(response)
        return float(response == "12")


@pytest.mark.parametrize("choice, texts", [(None, ["1<|user|>2", "1<pad>2", "12"]), ("hide", ["12", "12", "12"])])
def test_the_reward_sees_special_tokens_unless_it_says_otherwise(choice, texts):
    """23 is "1", 24 is "2", 4 is <|user|>, 0 the padding."""
    answers = itertools.cycle([[23, 4, 24, END], [23, 0, 24], [23, 24, END]])
    Keeps.seen.clear()
    env = lambda config: Keeps(special_tokens_in_response=choice)  # noqa: E731
    runner = toy_runner(env, lambda request: next(answers), group_size=3)
    batch, _ = runner.sample_groups([0], weight_version=0)
    assert Keeps.seen == texts
    assert batch.rewards.tolist() == [float(text == "12") for text in texts]


def test_text_in_a_prompt_becomes_control_tokens_only_on_request():
    runner = toy_runner(Keeps)
    runner.sample_groups([0], weight_version=0)
    assert not {2} & set(runner.engine.requests[0].prompt_ids)
    asked = toy_runner(lambda config: Keeps(control_tokens_in_prompt="tokens"))
    asked.sample_groups([0], weight_version=0)
    assert asked.engine.requests[0].prompt_ids[2] == 2


@pytest.mark.parametrize("option", ["control_tokens_in_prompt", "special_tokens_in_response"])
def test_a_choice_that_means_nothing_is_refused(option):
    with pytest.raises(ValueError, match=rf"Keeps: {option}='both' must be '\w+' or '\w+'"):
        Keeps(**{option: "both"})

    class OwnConstructor(Keeps):
        def __init__(self):
            super().__init__()
            setattr(self, option, "both")

    with pytest.raises(AssertionError, match=rf"OwnConstructor: {option}='both'"):
        check_env(OwnConstructor)
