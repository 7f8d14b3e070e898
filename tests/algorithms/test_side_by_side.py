"""Learners that start while something else is waited for: taken once they have, ended if they are not wanted."""

import gc
import threading
import weakref

import pytest
import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.driver import processes
from rlhf_algos.driver.publication import Publication
from rlhf_algos.driver.side_by_side import learners_starting, started_learners


class Learners:
    def __init__(self):
        self.ended = threading.Event()
        self.times_ended = 0

    def shutdown(self):
        self.times_ended += 1
        self.ended.set()


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
    assert asked == [["default_policy"]] and not learners.ended.is_set()


def test_the_learners_error_reaches_the_driver(ray_session):
    def start(rl_module_spec):
        raise ValueError("/no/such/model holds no config.json")

    with pytest.raises(ValueError, match="/no/such/model"), learners_starting(config_with(start), nothing):
        started_learners()


@pytest.mark.parametrize("failure", [RuntimeError("the environment is broken"), KeyboardInterrupt()])
def test_an_actors_failure_comes_at_once_and_ends_the_learners_when_they_come(ray_session, failure):
    learners, come = Learners(), threading.Event()

    def start(rl_module_spec):
        assert come.wait(60)
        return learners

    def require_env_runners():
        raise failure

    with (
        pytest.raises(type(failure)),
        learners_starting(config_with(start), require_env_runners),
    ):
        started_learners()
    assert not come.is_set() and not learners.ended.is_set()
    come.set()
    assert learners.ended.wait(30)


def test_ctrl_c_while_the_learners_are_waited_for_ends_them_too(ray_session, monkeypatch):
    learners, come = Learners(), threading.Event()

    def start(rl_module_spec):
        assert come.wait(60)
        return learners

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlhf_algos.driver.side_by_side.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt), learners_starting(config_with(start), nothing):
        started_learners()
    come.set()
    assert learners.ended.wait(30)


@pytest.mark.parametrize("ready", [True, False])
def test_another_failure_ends_the_learners(ray_session, ready):
    learners, go = Learners(), threading.Event()

    def start(rl_module_spec):
        assert go.wait(30)
        return learners

    with pytest.raises(ValueError, match="callbacks"), learners_starting(config_with(start), nothing):
        if ready:
            go.set()
            for thread in threading.enumerate():
                if thread.name == "starting learners":
                    thread.join(30)
        raise ValueError("callbacks")
    go.set()
    assert learners.ended.wait(30)
    assert learners.times_ended == 1


@pytest.mark.parametrize("how", ["a learner in the driver", "several machines", "saved batches", "placement group"])
def test_where_nothing_can_start_beside_it_rllibs_order_stays(ray_session, monkeypatch, how):
    def start(**_):
        raise AssertionError("started")

    config = config_with(start, num_learners=0 if how == "a learner in the driver" else 1)
    if how == "saved batches":
        config._is_online = False
    if how == "several machines":
        monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True}, {"Alive": True}])
    if how == "placement group":
        monkeypatch.setattr("ray.util.get_current_placement_group", lambda: "of a trial")
    with learners_starting(config, nothing):
        assert started_learners() is None


def test_no_learner_takes_the_bundle_of_a_rollout_actor(ray_session):
    """In a trial's placement group, with learners that are placed before the actors are."""
    bundles = [{"CPU": 0.1}, {"CPU": 0.4}, {"CPU": 0.5}]
    group = placement_group(bundles)
    ray_session.get(group.ready())

    class Process:
        def answer(self):
            return True

    class Trial:
        def placed(self):
            process = ray.remote(Process)
            started = threading.Event()

            def start(**_):
                learner = process.options(num_cpus=0.4).remote()
                ray.get(learner.answer.remote())
                started.set()
                return learner

            with learners_starting(config_with(start), nothing):
                # So that learners that start beside the actor are there before it.
                started.wait(5)
                actor = process.options(num_cpus=0.4, placement_group_bundle_index=1).remote()
                ready, _ = ray.wait([actor.answer.remote()], timeout=30)
                return bool(ready) and (started_learners() or start()) is not None

    strategy = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    trial = ray.remote(Trial).options(num_cpus=0.1, scheduling_strategy=strategy).remote()
    try:
        assert ray_session.get(trial.placed.remote(), timeout=120)
    finally:
        ray_session.kill(trial)
        remove_placement_group(group)


def test_actors_for_evaluation_are_waited_for_too(monkeypatch):
    asked = []
    monkeypatch.setattr(
        processes, "require_env_runners", lambda group, what="rollout actor": asked.append((group, what))
    )
    processes.require_actors("training", "evaluation")
    processes.require_actors(None, "evaluation")
    evaluation = ("evaluation", "evaluation actor")
    assert asked == [("training", "rollout actor"), evaluation, evaluation]


class Group:
    """Of actors; records when they are ended."""

    actors = (1, 2)

    def reset(self, new_remote_workers):
        self.actors = new_remote_workers


@pytest.mark.parametrize("failing", ["setup", "publish"])
@pytest.mark.parametrize("failure", [ValueError("on_algorithm_init"), KeyboardInterrupt()])
def test_a_failure_after_the_learners_came_ends_everything(ray_session, monkeypatch, failing, failure):
    learners, groups, held = Learners(), [Group(), Group()], []

    class HalfBuilt:
        pass

    def setup(self, config):
        self.env_runner_group, self.eval_env_runner_group = groups
        self.evaluation_config = self.config
        self.learner_group = started_learners()
        if failing == "setup":
            raise_while_holding()

    def raise_while_holding():
        half_built = HalfBuilt()
        held.append(weakref.ref(half_built))
        raise failure

    monkeypatch.setattr(Algorithm, "setup", setup)
    monkeypatch.setattr("rlhf_algos.algorithms.algorithm.require_actors", lambda *groups: None)
    monkeypatch.setattr(Publication, "publish", lambda self, version: raise_while_holding())
    monkeypatch.setattr(GRPOConfig, "build_learner_group", lambda self, rl_module_spec: learners)
    algorithm = object.__new__(GRPO)
    with pytest.raises(type(failure)) as raised:
        algorithm.setup(GRPOConfig().environment("rlhf_algos/Addition-v0"))
    assert raised.value is failure
    assert [group.actors for group in groups] == [[], []]
    assert learners.times_ended == 1
    gc.collect()
    # The traceback is still there; what it saw is not.
    assert [each() for each in held] == [None]
