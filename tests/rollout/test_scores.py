"""Rewards that can't be computed: every error names the sample, or the response is left out."""

import itertools
import logging
import re
import sys

import numpy as np
import pytest

from rlhf_algos.envs import RewardError
from rlhf_algos.rollout.environments import LocalEnvironments, Score
from tests.fake_engine import FakeEngine
from tests.rollout.playing import Counted, answers_its_number, plan_for, played, player_on, settings_for


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


def test_an_actor_of_another_machine_plays_without_a_mark_and_says_so_once(tmp_path, caplog):
    """The folder for marks is in the memory of the driver's machine."""
    player = player_on(FakeEngine(), settings_for())
    for group in (0, 1):
        player.start(plan_for(group), weight_version=0, mark=tmp_path / "of the driver" / "sampling-1")
        assert player.advance().num_samples == 4
    assert [record.message.split(",")[0] for record in caplog.records] == [str(tmp_path / "of the driver")]
