"""Episodes on a table of answers: order, alignment, and every error without a start of vLLM."""

import itertools
import logging
import re
import sys

import numpy as np
import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.batch import FINISH_LENGTH, FINISH_STOP
from rlhf_algos.envs import PromptEnv, RewardError
from rlhf_algos.rollout.environments import LocalEnvironments, Score
from rlhf_algos.rollout.plans import plan_of_evaluation, plan_of_groups
from rlhf_algos.rollout.player import Player
from rlhf_algos.rollout.stages import stages_of
from rlhf_algos.weight_sync.mismatch_injection import NO_INJECTION
from tests.fake_engine import END, ZERO, FakeEngine, fake_runner, prompts_of


class Counted(PromptEnv):
    """Prompts that can be told apart; the reward is the number that was answered."""

    heldout_fraction = 0.0

    def prompt(self, rng):
        return f"{rng.integers(1000, 9999)}="

    def reward(self, response):
        return float(response)


def settings_for(env=Counted, *, sampling=None, unscorable="stop"):
    config = (
        GRPOConfig()
        .environment(env)
        .sampling(**{"max_response_tokens": 4, **(sampling or {})})
        .training(group_size=4, unscorable_responses=unscorable)
        .debugging(seed=0)
    )
    return config.rollout_settings()


def player_on(engine, settings, environments=None):
    training, _ = stages_of(settings)
    return Player(engine, environments or training.environments, training.tokenizer, settings, training.play)


def plan_for(*groups):
    return plan_of_groups(groups, size=4, seed=0)


def played(env=Counted, *groups, engine=None, **options):
    player = player_on(engine or FakeEngine(), settings_for(env, **options))
    player.start(plan_for(*groups), weight_version=3)
    return player.advance(), player.too_long


def answers_its_number(request):
    """`training-13` is answered with the digits 1 and 3."""
    return [ZERO + int(digit) for digit in request.key.split("-")[1]] + [END]


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


# ---- rewards -------------------------------------------------------------------------------------------------------


class Moody(Counted):
    """Every second response can be scored."""

    fault = "nan"
    counter = itertools.count()

    def reward(self, response):
        if next(self.counter) % 2 == 0:
            return 1.0
        if self.fault == "raises":
            raise RuntimeError("the judge does not answer")
        if self.fault == "exits":
            sys.exit(3)
        return float("nan") if self.fault == "nan" else None


FAULTS = {
    "nan": (RewardError, "the reward is nan, it must be a finite number"),
    "none": (RewardError, "the reward is None, it must be a finite number"),
    "raises": (RewardError, "the reward function raised RuntimeError: the judge does not answer"),
    "exits": (SystemExit, "3"),
}


@pytest.fixture(params=FAULTS)
def fault(request, monkeypatch):
    monkeypatch.setattr(Moody, "fault", request.param)
    monkeypatch.setattr(Moody, "counter", itertools.count())
    return request.param


def test_a_reward_that_can_not_be_computed_stops_the_run_and_names_the_sample(fault):
    engine = FakeEngine(answers_its_number)
    player = player_on(engine, settings_for(Moody))
    player.start(plan_for(5), weight_version=0)
    kind, message = FAULTS[fault]
    with pytest.raises(kind, match=re.escape(message)) as error:
        player.advance()
    assert error.value.__notes__ == ["while scoring sample 21 of group 5; the run was stopped"]
    # Nothing is left of that plan.
    assert (engine.num_running, player.num_unfinished) == (0, 0)
    Moody.fault = "none"


def test_on_request_an_unscorable_response_is_left_out(fault, caplog):
    """NaN, None, an exception and an exit mean the same; the others of the group keep their rewards."""
    with caplog.at_level(logging.WARNING):
        batch, _ = played(Moody, 5, 6, unscorable="leave_out")
    assert batch.scored.tolist() == [True, False] * 4
    assert batch.rewards[batch.scored].tolist() == [1.0] * 4 and np.isnan(batch.rewards[~batch.scored]).all()
    assert np.array_equal(batch.loss_mask, np.repeat(batch.scored, batch.response_lengths))
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(" can't be scored and is left out: ")[0] for text in texts] == [
        f"Sample {sample} of group {sample // 4}" for sample in (21, 23, 25, 27)
    ]


def test_another_turn_is_an_error():
    class Asks(Counted):
        def step(self, response):
            return "and then?", 0.0, False, False, {}

    with pytest.raises(ValueError, match=r"Asks.* asked for another turn after sample 20; .*return terminated=True"):
        played(Asks, 5)


def test_a_request_that_the_engine_loses_is_an_error():
    class Losing(FakeEngine):
        def step(self):
            done = super().step()
            return [] if done[0][0] == "training-2" else done

    with pytest.raises(RuntimeError, match=r"Samples \[2\] are neither being generated nor scored"):
        played(Counted, 0, engine=Losing())


# ---- environments --------------------------------------------------------------------------------------------------


def test_environments_are_kept_and_closed():
    made, closed = [], []

    class Kept(Counted):
        def close(self):
            closed.append(self)

    def create():
        made.append(Kept())
        return made[-1]

    environments = LocalEnvironments(create, unscorable="stop")
    assert environments.facts().name == "Kept" and len(made) == 1
    for groups, count in (((0,), 4), ((0, 1), 8), ((2,), 8)):
        openings = environments.reset(plan_for(*groups))
        assert len(openings) == 4 * len(groups) and len(made) == count
        for episode in plan_for(*groups):
            environments.submit(episode.key, "1")
        assert environments.collect() == [Score(episode.key, 1.0) for episode in plan_for(*groups)]
        assert environments.collect(wait=True) == []
    environments.close()
    assert closed == made
    assert environments.first() is not made[0]


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
