"""How many training steps an iteration has: RLlib's three minimums act."""

import dataclasses
import time

import pytest
from ray.rllib.algorithms.algorithm import TrainIterCtx
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.parts import Parts
from rlhf_algos.driver.batch_metrics import trained_counts
from rlhf_algos.driver.publication import Publication
from rlhf_algos.driver.source import BatchSource, Rollouts
from rlhf_algos.driver.step_log import StepLog
from rlhf_algos.weight_sync import NO_INJECTION, SharedMemory
from tests.algorithms.test_metric_reductions import FIRST


class SameBatch(BatchSource):
    """Always the one batch."""

    def next(self, version):
        return Rollouts(FIRST)

    def splits(self):
        return [{}]

    def state(self):
        return {}

    def restore(self, state):
        pass


class CountingLearners:
    """They take no step."""

    steps = 0

    def update(self, batch, *, responses_sampled, weight_version):
        assert (responses_sampled, weight_version) == (8 * (self.steps + 1), 0)
        self.steps += 1
        if self.steps > 50:
            raise AssertionError("the iteration does not end")
        time.sleep(0.01)
        return {"num_optimizer_steps": 0.0, "steps_without_trained_token": 0.0}


class SteppingLearners(CountingLearners):
    """They take a step of each second batch, and note which version they were told."""

    def __init__(self):
        self.told = []

    def update(self, batch, *, responses_sampled, weight_version):
        self.told.append(weight_version)
        return {"num_optimizer_steps": float(len(self.told) % 2), "steps_without_trained_token": 0.0}


class OneBatch(GRPO):
    """GRPO's own loop on one batch of 8 responses, of which 7 are trained on; nothing samples or learns."""

    def __init__(self, config):
        self.config, self.metrics = config, MetricsLogger(root=True)
        self.step_log, self._iteration = StepLog(self.metrics), 0
        publication = Publication(None, None, None, is_received=False, injection=NO_INJECTION, seed=0)
        self.parts = Parts(CountingLearners(), publication, SameBatch(), None, None, None)

    @property
    def steps(self):
        """Training steps so far."""
        return self.parts.learners.steps

    def iterate(self):
        """The loop of RLlib's `_run_one_training_iteration`."""
        with TrainIterCtx(algo=self) as iteration:
            has_run = None
            while not iteration.should_stop(has_run):
                self.training_step()
                has_run = True


def steps_of_an_iteration(**options):
    config = GRPOConfig().environment("rlhf_algos/Addition-v0").reporting(**options)
    config.validate()
    algorithm = OneBatch(config)
    algorithm.iterate()
    return algorithm


@pytest.mark.parametrize(
    ("option", "steps"),
    [
        ({}, 1),
        ({"min_train_timesteps_per_iteration": 7}, 1),
        ({"min_train_timesteps_per_iteration": 8}, 2),
        ({"min_train_timesteps_per_iteration": 21}, 3),
        ({"min_sample_timesteps_per_iteration": 16}, 2),
        ({"min_sample_timesteps_per_iteration": 17}, 3),
    ],
)
def test_an_iteration_goes_on_until_enough_was_done(option, steps):
    assert steps_of_an_iteration(**option).steps == steps


def test_an_iteration_takes_at_least_so_long():
    assert 2 <= steps_of_an_iteration(min_time_s_per_iteration=0.05).steps <= 6


def test_the_responses_trained_on_are_counted_over_a_run():
    algorithm = steps_of_an_iteration(min_train_timesteps_per_iteration=8)
    algorithm.iterate()
    result = algorithm.metrics.reduce(compile=True)
    assert result["learners"]["__all_modules__"] == {"num_env_steps_trained_lifetime": 28}
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] == 32


def test_a_response_without_a_trained_token_is_not_trained_on():
    assert trained_counts(FIRST) == {"num_env_steps_trained_lifetime": 7}
    assert trained_counts(dataclasses.replace(FIRST, loss_mask=FIRST.loss_mask & False)) == {
        "num_env_steps_trained_lifetime": 0
    }


def test_an_update_is_told_the_version_that_it_starts_from_and_one_without_a_step_makes_none(tmp_path):
    config = GRPOConfig().environment("rlhf_algos/Addition-v0")
    config.validate()
    algorithm = OneBatch(config)
    learners, channel = SteppingLearners(), SharedMemory(tmp_path)
    publication = Publication(channel, None, None, is_received=False, injection=NO_INJECTION, seed=0)
    algorithm.parts = dataclasses.replace(algorithm.parts, learners=learners, publication=publication)
    for _ in range(4):
        algorithm.training_step()
    assert learners.told == [0, 1, 1, 2]
    assert publication.version == 2
    channel.close()
