"""Episodes on a table of answers: order, alignment, room, and whose weights sampled them."""

import logging

import numpy as np
import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.batch import FINISH_LENGTH, FINISH_STOP
from rlhf_algos.envs import PromptEnv
from rlhf_algos.rollout.plans import plan_of_evaluation, plan_of_groups
from rlhf_algos.rollout.stages import stages_of
from rlhf_algos.weight_sync.mismatch_injection import NO_INJECTION
from tests.fake_engine import END, ZERO, FakeEngine, fake_runner, prompts_of
from tests.rollout.playing import Counted, answers_its_number, plan_for, played, player_on, settings_for


class LastFirst(FakeEngine):
    """The newest request finishes first."""

    def step(self):
        self.waiting.insert(0, self.waiting.pop())
        return super().step()


class Late:
    """Environments as other processes would be: nothing is scored before somebody waits, and the last comes first."""

    def __init__(self, environments):
        self.environments, self.submitted = environments, []

    def __getattr__(self, name):
        return getattr(self.environments, name)

    def submit(self, key, response):
        self.submitted.append((key, response))

    def collect(self, *, wait=False):
        if not (wait and self.submitted):
            return []
        self.environments.submit(*self.submitted.pop())
        return self.environments.collect()


# ---- order and alignment -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("engine", [FakeEngine, LastFirst])
def test_a_batch_is_in_the_plans_order_whatever_finishes_first(engine, late):
    settings = settings_for()
    environments = stages_of(settings)[0].environments
    engine = engine(answers_its_number)
    player = player_on(engine, settings, Late(environments) if late else environments)
    player.start(plan_for(3, 1), weight_version=7)
    batch = player.advance()
    assert batch.sample_ids.tolist() == [12, 13, 14, 15, 4, 5, 6, 7]
    assert batch.group_ids.tolist() == [3] * 4 + [1] * 4
    assert batch.rewards.tolist() == [12, 13, 14, 15, 4, 5, 6, 7]
    assert batch.response_ids[:3].tolist() == [ZERO + 1, ZERO + 2, END]
    assert batch.weight_versions.tolist() == [7] * (4 * 3 + 4 * 2)
    assert set(batch.finish_reasons.tolist()) == {FINISH_STOP}
    prompts = np.split(batch.prompt_ids, np.cumsum(batch.prompt_lengths)[:-1])
    assert [prompt.tolist() for prompt in prompts] == [request.prompt_ids for request in engine.requests]
    assert len(set(prompts_of(engine.requests[:4]))) == 1 and len(set(prompts_of(engine.requests))) == 2


def test_a_plan_can_be_played_in_parts():
    engine = LastFirst(answers_its_number)
    player = player_on(engine, settings_for())
    player.start(plan_for(0, 1), weight_version=0)
    assert player.advance(until=0) is None
    assert player.advance(until=3).sample_ids.tolist() == [5, 6, 7]
    assert (player.num_unfinished, engine.num_running) == (5, 5)
    with pytest.raises(RuntimeError, match="5 episodes of the last plan are unfinished"):
        player.start(plan_for(2), weight_version=0)
    assert player.advance(until=3) is None
    rest = player.advance()
    assert rest.sample_ids.tolist() == [0, 1, 2, 3, 4] and rest.rewards.tolist() == [0, 1, 2, 3, 4]
    assert player.advance() is None
    player.start(plan_for(2), weight_version=1)
    batch = player.advance(until=100)
    assert batch.sample_ids.tolist() == [8, 9, 10, 11] and set(batch.weight_versions.tolist()) == {1}


def test_a_batch_says_how_it_was_sampled():
    settings = settings_for(sampling={"temperature": 0.5, "top_k": 3, "stop_token_ids": [9]})
    player = player_on(FakeEngine(), settings)
    for greedy, temperature, top_k in ((False, 0.5, 3), (True, 0.0, 0)):
        player.start(plan_for(0), weight_version=0, greedy=greedy)
        said = player.advance().settings
        assert (said.model, said.environment) == ("rlhf_algos/tiny-moe", str(Counted))
        assert said.split == "train"
        assert said.split_rule == "rlhf_algos.envs.prompt_env.PromptEnv.problem_key of Counted, 0"
        assert (said.temperature, said.top_p, said.top_k) == (temperature, 1.0, top_k)
        assert (said.max_response_tokens, said.stop_token_ids) == (4, (9,))
        assert said.mismatch_injection == NO_INJECTION.as_dict()


def test_noise_depends_on_the_sample_alone():
    """Not on the rest of the plan, and never shared: not by members of a group, nor by an evaluation."""
    engine = FakeEngine()
    player = player_on(engine, settings_for())
    for groups in ((0, 1), (1,)):
        player.start(plan_for(*groups), weight_version=0)
        player.advance()
    seeds = [request.seed for request in engine.requests]
    assert len(set(seeds)) == 8 and seeds[8:] == seeds[4:8]
    plans = plan_of_groups([0, 1], size=4, seed=1), plan_of_evaluation(range(8), seed=0)
    others = {episode.seed for plan in plans for episode in plan}
    assert not set(seeds) & others and len(others) == 16
    assert len({episode.reset["seed"] for episode in plan_for(0, 1, 2)}) == 3


@pytest.mark.parametrize(
    "sampling, asked",
    [
        ({}, 0),
        ({"record_head": 5}, 5),
        ({"record_head": 10_000}, 263),
        ({"top_k": 3}, 14),
        ({"top_k": 200}, 263),
        ({"top_p": 0.5}, 263),
        ({"top_p": 0.5, "top_k": 3}, 14),
    ],
)
def test_as_many_entries_are_asked_for_as_can_be_needed(sampling, asked):
    engine = FakeEngine()
    player_on(engine, settings_for(sampling=sampling)).start(plan_for(0), weight_version=0)
    assert {request.num_logprobs for request in engine.requests} == {asked}


def test_a_request_that_the_engine_loses_is_an_error():
    class Losing(FakeEngine):
        def step(self):
            done = super().step()
            return [] if done[0][0] == "training-2" else done

    with pytest.raises(RuntimeError, match=r"Samples \[2\] are neither being generated nor scored"):
        played(Counted, 0, engine=Losing())


# ---- prompts that do not fit ---------------------------------------------------------------------------------------


class OfLength(PromptEnv):
    """Problem i has a prompt of i tokens."""

    heldout_fraction = 0.0

    def prompt_at(self, index):
        return "x" * index

    def reward(self, response):
        return 0.0


def test_a_response_gets_the_room_that_its_prompt_leaves(caplog):
    """Context 32: a prompt of 32 tokens leaves no room, one of 31 leaves one token."""
    engine = FakeEngine(lambda request: [ZERO] * 100)
    engine.max_model_len = 32
    player = player_on(engine, settings_for(OfLength, sampling={"max_response_tokens": 8}))
    with caplog.at_level(logging.WARNING):
        player.start(plan_of_evaluation([4, 30, 31, 32, 40], seed=0), weight_version=0)
    assert [len(request.prompt_ids) for request in engine.requests] == [4, 30, 31]
    assert [request.max_tokens for request in engine.requests] == [8, 2, 1]
    assert player.too_long == [32, 40]
    assert "The prompts of groups [32, 40] leave no room for a response in max_model_len=32" in caplog.text
    batch = player.advance()
    assert batch.response_lengths.tolist() == [8, 2, 1]
    assert set(batch.finish_reasons.tolist()) == {FINISH_LENGTH}


def test_groups_whose_prompt_is_too_long_are_named_once_and_the_others_stay_whole():
    class Sometimes(Counted):
        def prompt(self, rng):
            return "x" * int(rng.choice([4, 70]))

        def reward(self, response):
            return 0.0

    batch, too_long = played(Sometimes, *range(12))
    assert 0 < len(too_long) < 12 and len(set(too_long)) == len(too_long)
    groups, counts = np.unique(batch.group_ids, return_counts=True)
    assert set(groups.tolist()) | set(too_long) == set(range(12))
    assert (counts == 4).all()


def test_nothing_that_fits_is_no_batch():
    class Long(Counted):
        def prompt(self, rng):
            return "x" * 70

    assert played(Long, 5) == (None, [5])


# ---- the actor -----------------------------------------------------------------------------------------------------


def test_an_actor_with_other_weights_refuses_to_sample():
    config = GRPOConfig().environment(Counted).training(group_size=2).debugging(seed=0)
    runner = fake_runner(config)
    runner.load_weights([], 3, injection=NO_INJECTION)
    with pytest.raises(RuntimeError, match="has weight version 3, the driver expects 4"):
        runner.sample_groups([0], weight_version=4)
    batch, _ = runner.sample_groups([0], weight_version=3)
    assert set(batch.weight_versions.tolist()) == {3}
    runner.configure(config, 1)
    assert (runner.configuration, runner.weight_version, runner.injection) == (1, None, None)
    with pytest.raises(RuntimeError, match="has weight version None, the driver expects 3"):
        runner.sample_groups([0], weight_version=3)
