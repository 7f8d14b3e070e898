"""Micro-batches: every sample once, budgets kept, the same number on every rank, exact alignment."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_algos.learner.packing import make_micro_batch, pack_sequences, plan_micro_batches
from tests.learner.conftest import make_batch


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    num_ranks=st.integers(1, 4),
    token_budget=st.integers(1, 80),
)
def test_every_sample_is_trained_once_within_the_budget(lengths, num_ranks, token_budget):
    plan = plan_micro_batches(np.array(lengths), num_ranks=num_ranks, token_budget=token_budget)
    assert len(plan) == num_ranks
    assert len({len(micro_batches) for micro_batches in plan}) == 1
    seen = [index for micro_batches in plan for chosen in micro_batches for index in chosen]
    assert sorted(seen) == list(range(len(lengths)))
    for micro_batches in plan:
        for chosen in micro_batches:
            # A sequence longer than the budget is trained alone, not dropped.
            assert len(chosen) <= 1 or sum(lengths[i] for i in chosen) <= token_budget


def test_unequal_ranks_are_filled_with_dummies():
    plan = plan_micro_batches(np.array([10, 10, 10]), num_ranks=2, token_budget=10)
    assert plan == [[[0], [2]], [[1], []]]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0 and 2"):
        plan_micro_batches(np.array([1]), num_ranks=2, token_budget=0)


def test_alignment_as_lists():
    #   sample 0: prompt p0..p4, response of 2; sample 1: prompt of 6, response of 1
    batch = make_batch([2, 1])
    packed = pack_sequences(batch)
    p, r = batch.prompt_ids.tolist(), batch.response_ids.tolist()
    assert packed.input_ids.tolist() == [*p[:5], r[0], r[1], *p[5:], r[2]]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6]
    assert packed.lengths.tolist() == [7, 7]
    # Row 4 (the last prompt token) predicts the first response token, row 5 the second; row 12 that of sample 1.
    assert packed.predicting.tolist() == [4, 5, 12]
    assert packed.targets.tolist() == r


def test_empty_response_predicts_nothing():
    packed = pack_sequences(make_batch([0, 2]))
    assert packed.predicting.tolist() == [5 + 6 - 1, 5 + 6]


def test_dummy_trains_nothing():
    batch = make_batch([3])
    micro_batch = make_micro_batch(batch, rows=torch.arange(3), loss_weights=torch.ones(3), is_dummy=True)
    assert not micro_batch.loss_mask.any()
    assert micro_batch.loss_weights.tolist() == [0, 0, 0]
