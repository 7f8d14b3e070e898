"""Learners that start while something else is waited for: taken once they have, ended if they are not wanted."""

import threading

import pytest

from rlhf_algos.algorithms.base.side_by_side import learners_starting, started_learners
from rlhf_algos.algorithms.grpo import GRPOConfig


class Learners:
    ended = False

    def shutdown(self):
        self.ended = True


def config_with(start, num_learners=1) -> GRPOConfig:
    config = GRPOConfig().environment("rlhf_algos/Addition-v0").learners(num_learners=num_learners)
    config.build_learner_group = start
    return config


def nothing():
    pass


def test_learners_start_while_the_actors_are_waited_for(ray_session):
    learners, asked, actors_up = Learners(), [], threading.Event()

    def start(rl_module_spec):
        asked.append(list(rl_module_spec.rl_module_specs))
        assert actors_up.wait(30)
        return learners

    assert started_learners() is None
    with learners_starting(config_with(start), nothing):
        # If they started one after the other, nobody would get here.
        actors_up.set()
        assert started_learners() is learners
    assert started_learners() is None
    assert asked == [["default_policy"]] and not learners.ended


def test_the_learners_error_reaches_the_driver(ray_session):
    def start(rl_module_spec):
        raise ValueError("/no/such/model holds no config.json")

    with pytest.raises(ValueError, match="/no/such/model"), learners_starting(config_with(start), nothing):
        started_learners()


def test_an_actors_error_comes_first_and_ends_the_learners(ray_session):
    learners, failed = Learners(), threading.Event()

    def start(rl_module_spec):
        assert failed.wait(30)
        return learners

    def require_env_runners():
        failed.set()
        raise RuntimeError("the environment is broken")

    with (
        pytest.raises(RuntimeError, match="the environment is broken"),
        learners_starting(config_with(start), require_env_runners),
    ):
        started_learners()
    assert learners.ended


def test_another_failure_ends_the_learners(ray_session):
    learners = Learners()
    with pytest.raises(ValueError, match="callbacks"), learners_starting(config_with(lambda **_: learners), nothing):
        raise ValueError("callbacks")
    assert learners.ended


@pytest.mark.parametrize("how", ["a learner in the driver", "several machines", "saved batches"])
def test_where_nothing_can_start_beside_it_rllibs_order_stays(ray_session, monkeypatch, how):
    def start(**_):
        raise AssertionError("started")

    config = config_with(start, num_learners=0 if how == "a learner in the driver" else 1)
    if how == "saved batches":
        config._is_online = False
    if how == "several machines":
        monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True}, {"Alive": True}])
    with learners_starting(config, nothing):
        assert started_learners() is None


def test_actors_for_evaluation_are_waited_for_too(monkeypatch):
    from rlhf_algos.algorithms.base import algorithm as module
    from rlhf_algos.algorithms.grpo import GRPO

    asked = []
    monkeypatch.setattr(module, "on_env_runners", lambda group, function: asked.append(group))
    algorithm = object.__new__(GRPO)
    algorithm.env_runner_group, algorithm.eval_env_runner_group = "training", "evaluation"
    algorithm._require_env_runners()
    algorithm.env_runner_group = None
    algorithm._require_env_runners()
    assert asked == ["training", "evaluation", "evaluation"]
