"""A response that nobody can score: the run stops, or it is left out and counted."""

from functools import partial

import numpy as np
import pytest

from rlhf_algos.driver.advantages import with_advantages
from rlhf_algos.driver.batch_metrics import rollout_metrics
from rlhf_algos.objectives import group_advantages
from rlhf_algos.rollout.assembly import ScoredResponse, assemble
from rlhf_algos.rollout.engine import Generation
from rlhf_algos.rollout.sampling import SamplingSettings


def batch_of(*groups):
    """One batch from groups of rewards; every response has two tokens."""
    rewards = [(group, reward) for group, rewards in enumerate(groups) for reward in rewards]
    responses = [
        ScoredResponse(sample, group, Generation([7], [5, 2], [-0.1, -0.2], finish_reason="stop"), reward, 0)
        for sample, (group, reward) in enumerate(rewards)
    ]
    return assemble(responses, SamplingSettings(), router=None, settings=None)


def test_the_others_are_compared_with_each_other():
    """Mean 1/3 and population standard deviation sqrt(2)/3 of the three that have a reward."""
    batch = with_advantages(batch_of([1.0, 0.0, None, 0.0]), group_advantages)
    assert batch.advantages == pytest.approx([np.sqrt(2), -np.sqrt(0.5), 0.0, -np.sqrt(0.5)], abs=1e-5)
    assert batch.loss_mask.tolist() == [True] * 4 + [False] * 2 + [True] * 2
    metrics = rollout_metrics(batch)
    assert metrics["episode_return_mean"] == pytest.approx(1 / 3)
    assert metrics["num_episodes"] == 4


def test_one_that_is_alone_has_no_advantage_and_an_empty_group_is_skipped():
    undivided = partial(group_advantages, normalize_std=False)
    batch = with_advantages(batch_of([None, 1.0, None, None], [None] * 4, [1.0, 0.0, 1.0, 0.0]), undivided)
    assert batch.advantages.tolist() == [0.0] * 8 + [0.5, -0.5, 0.5, -0.5]
    assert batch.loss_mask.reshape(12, 2)[:, 0].tolist() == [False, True] + [False] * 6 + [True] * 4
    assert rollout_metrics(batch)["zero_std_group_fraction"] == 0.0


def test_nothing_scored_at_all_is_an_error():
    with pytest.raises(ValueError, match="None of the 4 responses could be scored"):
        rollout_metrics(batch_of([None] * 4))
