"""Addition-v0: prompts, rewards, splits."""

import re

import pytest

from rlhf_algos.envs import Addition, make_prompt_env


def solve(prompt):
    left, right = prompt.removesuffix("=").split("+")
    return str(int(left) + int(right))


@pytest.mark.parametrize("digits", [1, 2, 3, 7])
def test_prompt_and_right_answer(digits):
    env = Addition(digits=digits)
    for seed in range(50):
        prompt, _ = env.reset(seed=seed)
        assert re.fullmatch(rf"\d{{{digits}}}\+\d{{{digits}}}=", prompt)
        assert env.step(solve(prompt))[1] == 1.0


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("46", 1.0),
        (" 46\n", 1.0),
        ("046", 0.0),
        ("4 6", 0.0),
        ("", 0.0),
        ("47", 0.0),
        ("46.", 0.0),
        ("\uff14\uff16", 0.0),
    ],
)
def test_reward(response, reward):
    env = Addition()
    env.reset(seed=0)
    env.ask(12, 34)
    assert env.step(response)[1] == reward


def test_numbers_cover_their_range():
    env = Addition(digits=1, split="all")
    lefts = {env.reset(seed=seed)[0][0] for seed in range(200)}
    assert lefts == set("0123456789")


def test_every_problem_is_listed_once_in_one_split():
    listed = {}
    for split in ("train", "heldout", "all"):
        env = Addition(digits=2, split=split)
        prompts = [env.reset(options={"index": index})[0] for index in range(env.num_problems)]
        assert len(set(prompts)) == len(prompts)
        listed[split] = set(prompts)
    assert not listed["train"] & listed["heldout"]
    assert listed["train"] | listed["heldout"] == listed["all"]
    assert len(listed["all"]) == 90 * 90
    assert 0.08 < len(listed["heldout"]) / 8100 < 0.12


def test_both_orders_of_two_numbers_are_one_problem():
    env = Addition(split="heldout")
    prompts = {env.reset(options={"index": index})[0] for index in range(env.num_problems)}
    assert {"{1}+{0}=".format(*prompt.removesuffix("=").split("+")) for prompt in prompts} == prompts


def test_seeded_draws_stay_in_the_split():
    env = Addition(split="heldout")
    listed = {env.reset(options={"index": index})[0] for index in range(env.num_problems)}
    assert {env.reset(seed=seed)[0] for seed in range(300)} <= listed


def test_the_split_never_moves():
    """Trained weights are shipped with this split: another hash would train on held-out problems."""
    env = Addition(split="heldout")
    assert env.num_problems == 827
    assert [env.reset(options={"index": index})[0] for index in range(3)] == [
        "21+54=",
        "23+53=",
        "35+52=",
    ]


def test_more_digits_are_drawn_and_not_listed():
    env = Addition(digits=5)
    assert env.num_problems is None
    assert env.reset(options={"index": 4})[0] == Addition(digits=5).reset(options={"index": 4})[0]


@pytest.mark.parametrize("digits", [0, 16, -1, 2.0, "2", True, None])
def test_digits(digits):
    message = f"digits={digits!r}: must be a whole number from 1 to 15."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Addition(digits=digits)


def test_unknown_argument_names_the_environment():
    with pytest.raises(TypeError, match="'digit'") as caught:
        make_prompt_env("rlhf_algos/Addition-v0", {"digit": 2})
    assert "environment='rlhf_algos/Addition-v0' with env_config={'digit': 2}" in str(caught.value.__notes__)
