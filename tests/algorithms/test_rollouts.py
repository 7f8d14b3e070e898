"""Groups and evaluation problems are played once each, whoever plays them and whoever dies."""

import os
import subprocess
import sys

import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.reset import as_config
from rlhf_algos.driver.playing import Actors, play_all, sample_groups
from rlhf_algos.envs import PromptEnv
from rlhf_algos.rollout.scoring_mark import Mark, ScoringMark, read_mark
from tests.fake_engine import Death, FakeGroup, fake_runner, prompts_of


class Deadly(PromptEnv):
    """Ends the process in the reward of one problem, so many times."""

    deaths = 0
    deadly = None
    marks = None

    def prompt(self, rng):
        return f"{rng.integers(1000, 9999)}="

    def reward(self, response):
        if self._prompt == type(self).deadly and type(self).deaths:
            type(self).deaths -= 1
            raise Death(type(self).marks.glob("mark-*"))
        return 1.0


@pytest.fixture
def config():
    config = (
        GRPOConfig()
        .environment(Deadly, env_config={"split": "all"})
        .training(prompts_per_iteration=4, group_size=2)
        .debugging(seed=0)
    )
    Deadly.deaths, Deadly.deadly = 0, None
    return as_config(GRPOConfig(), config)


def actors_of(config, tmp_path, count):
    Deadly.marks = tmp_path
    group = FakeGroup([fake_runner(config) for _ in range(count)])
    restored = []
    return Actors(group, lambda: restored.extend(group.probe_unhealthy_env_runners()), 5.0, tmp_path / "mark"), restored


def prompt_of_group(config, group):
    runner = fake_runner(config)
    runner.sample_groups([group], weight_version=0)
    return prompts_of(runner.engine.requests)[0]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_group_is_played_once_and_in_order_for_any_number_of_actors(config, tmp_path, count):
    actors, restored = actors_of(config, tmp_path, count)
    rollouts = sample_groups(actors, range(10, 15), weight_version=0)
    assert rollouts.batch.group_ids.tolist() == [group for group in range(10, 15) for _ in range(2)]
    assert (rollouts.groups_sampled_again, restored) == (0, [])


def test_one_death_costs_one_more_try_of_what_that_actor_had(config, tmp_path):
    Deadly.deadly, Deadly.deaths = prompt_of_group(config, 3), 1
    actors, restored = actors_of(config, tmp_path, 2)
    rollouts = sample_groups(actors, range(5), weight_version=0)
    assert rollouts.batch.group_ids.tolist() == [group for group in range(5) for _ in range(2)]
    assert rollouts.groups_sampled_again == 2  # groups 1 and 3
    assert restored == [2]


def test_a_second_death_names_the_group_and_the_sample(config, tmp_path):
    Deadly.deadly, Deadly.deaths = prompt_of_group(config, 3), 10
    actors, _ = actors_of(config, tmp_path, 2)
    with pytest.raises(RuntimeError, match=r"environment of sample 6 of group 3 was running, and so it did the time"):
        sample_groups(actors, range(5), weight_version=0)
    assert Deadly.deaths == 8


def test_without_a_mark_all_groups_of_the_actor_are_named(config, tmp_path):
    Deadly.deadly, Deadly.deaths = prompt_of_group(config, 3), 10
    Deadly.marks = tmp_path
    group = FakeGroup([fake_runner(config), fake_runner(config)])
    actors = Actors(group, group.probe_unhealthy_env_runners, 5.0)
    with pytest.raises(RuntimeError, match=r"ended while it played the groups \[3\]|\[1, 3\]"):
        sample_groups(actors, range(5), weight_version=0)


def test_an_actor_that_returns_something_else_is_an_error_and_no_endless_loop(config, tmp_path):
    actors, _ = actors_of(config, tmp_path, 1)
    with pytest.raises(RuntimeError, match=r"was to play the groups \[0, 1\] and returned \[\]"):
        play_all(actors, [0, 1], lambda runner, ids, mark: (None, []), what="group")


def test_no_actor_at_all_is_an_error_after_the_patience(config, tmp_path):
    group = FakeGroup([])
    with pytest.raises(RuntimeError, match="No rollout actor came back within 0.3 s"):
        play_all(Actors(group, lambda: None, 0.3), [0], lambda runner, ids, mark: (None, []), what="group")


@pytest.mark.parametrize("error", [SystemExit(3), KeyError("gone")])
def test_a_reward_that_calls_exit_is_one_that_could_not_be_computed(config, error):
    class Exits(Deadly):
        def reward(self, response):
            raise error

    stop = as_config(GRPOConfig(), config.copy(copy_frozen=False).environment(Exits))
    with pytest.raises(BaseException, match=r"3|gone") as raised:
        fake_runner(stop).sample_groups([4], weight_version=0)
    assert "while scoring sample 8 of group 4" in raised.value.__notes__[0]
    leave_out = as_config(GRPOConfig(), stop.copy(copy_frozen=False).training(unscorable_responses="leave_out"))
    batch, _ = fake_runner(leave_out).sample_groups([4], weight_version=0)
    assert not batch.scored.any() and not batch.loss_mask.any()


def test_the_mark_outlives_its_process(tmp_path):
    """`os._exit` inside the environment; and nothing is marked while no environment runs."""
    code = (
        "import os, sys; from pathlib import Path; from rlhf_algos.rollout.scoring_mark import ScoringMark\n"
        "mark = ScoringMark(Path(sys.argv[1]))\n"
        "with mark.of(7, 30): pass\n"
        "if sys.argv[2] == 'inside':\n"
        "    with mark.of(8, 33): os._exit(1)\n"
    )
    for place, expected in (("inside", Mark(8, 33)), ("outside", None)):
        file = tmp_path / place
        assert read_mark(file) is None
        subprocess.run([sys.executable, "-c", code, str(file), place], check=False, env=dict(os.environ))
        assert read_mark(file) == expected
    ScoringMark(tmp_path / "inside")
    assert read_mark(tmp_path / "inside") is None
