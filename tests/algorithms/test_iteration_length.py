"""How many training steps an iteration has: RLlib's three minimums act."""

import dataclasses
import time

import pytest
from ray.rllib.algorithms.algorithm import TrainIterCtx
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.algorithms.base.metrics import IterationMetrics, trained_counts
from rlhf_algos.algorithms.base.rollouts import Rollouts
from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from tests.algorithms.test_metric_reductions import FIRST


class OneBatch(GRPO):
    """GRPO's own loop on one batch of 8 responses, of which 7 are trained on; nothing samples or learns."""

    def __init__(self, config):
        self.config, self.metrics = config, MetricsLogger(root=True)
        self._step_metrics, self._batch_folder, self.offline_data = IterationMetrics(), None, None
        self._iteration, self._weight_version, self.steps = 0, 0, 0

    def iterate(self):
        """The loop of RLlib's `_run_one_training_iteration`."""
        with TrainIterCtx(algo=self) as iteration:
            has_run = None
            while not iteration.should_stop(has_run):
                self.training_step()
                has_run = True

    def _next_rollouts(self):
        return Rollouts(FIRST, 0, 0)

    def _update(self, batch):
        self.steps += 1
        if self.steps > 50:
            raise AssertionError("the iteration does not end")
        time.sleep(0.01)
        return {"num_optimizer_steps": 0.0, "steps_without_trained_token": 0.0}


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
