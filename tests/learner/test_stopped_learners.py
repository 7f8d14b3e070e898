"""What ends learners: the last tests that use them, by this file's name, since they can't be used afterwards."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
from ray.exceptions import RayTaskError

from rlhf_algos.driver.calls import on_learners
from rlhf_algos.learner.token_loss import TokenLoss
from tests.learner.conftest import make_batch


class Broken(TokenLoss):
    """Raises."""

    def __call__(self, tokens):
        raise ValueError("rank 1 broke")


def test_a_failing_rank_stops_all(learners):
    """The driver gets the failing rank's own error within 60 s, although the other waits for it."""
    batch = make_batch([9, 4, 6, 8])
    group = learners(num_learners=2, zero_stage=2)

    def fail_on_rank_1(learner):
        if learner.rank == 1:
            learner.settings = dataclasses.replace(learner.settings, token_loss=Broken())
        return learner.update_from_rollouts(batch, env_steps_sampled=0)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises((ValueError, RayTaskError), match="rank 1 broke"):
            pool.submit(on_learners, group, fail_on_rank_1).result(timeout=60)
