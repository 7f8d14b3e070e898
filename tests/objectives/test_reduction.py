"""Reduction to a scalar: MATH 4; the split changes nothing, nor does a response with nothing to train on."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_algos.objectives import loss_weights, reduce_loss

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
# Response 0: losses 1 2 3, the last untrained.  Response 1: loss 4.  Response 2: only untrained.
LOSSES = [1.0, 2.0, 3.0, 4.0, 100.0]
MASK = [True, True, False, True, False]
SAMPLES = [0, 0, 0, 1, 2]


def weights_for(mask, samples, count, mode, **options):
    if mode == "seq-mean-token-sum-norm":
        options.setdefault("fixed_length", 8)
    return loss_weights(
        torch.tensor(mask, dtype=torch.bool),
        torch.tensor(samples, dtype=torch.int64),
        count,
        mode=mode,
        **options,
    )


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("token-mean", {}, 7 / 3),
        ("seq-mean-token-mean", {}, (1.5 + 4) / 2),
        ("seq-mean-token-sum", {}, (3 + 4) / 2),
        ("seq-mean-token-sum-norm", {"fixed_length": 8}, (3 + 4) / 2 / 8),
        ("seq-mean-token-sum-norm", {"fixed_length": 4}, (3 + 4) / 2 / 4),
    ],
)
def test_worked_modes(mode, options, expected):
    weights = weights_for(MASK, SAMPLES, 3, mode, **options)
    assert reduce_loss(torch.tensor(LOSSES), weights).item() == pytest.approx(expected)


def test_gradient_of_each_token_is_its_weight():
    losses = torch.tensor(LOSSES, dtype=torch.float64, requires_grad=True)
    weights = weights_for(MASK, SAMPLES, 3, "seq-mean-token-mean").double()
    reduce_loss(losses, weights).backward()
    assert losses.grad.tolist() == [0.25, 0.25, 0.0, 0.5, 0.0]
    assert torch.autograd.gradcheck(lambda values: reduce_loss(values, weights), (losses,))


def test_token_mean_over_learners():
    weights = weights_for([True] * 6, [0] * 5 + [1], 2, "token-mean")
    losses = torch.tensor([1.0] * 5 + [4.0])
    shares = [reduce_loss(losses[:5], weights[:5]), reduce_loss(losses[5:], weights[5:])]
    assert sum(share.item() for share in shares) == pytest.approx(1.5)


@pytest.mark.parametrize("with_masked_sample", [False, True])
def test_token_mean_over_micro_batches(with_masked_sample):
    losses, mask, samples = [4.0, 1.0, 1.0, 1.0], [True] * 4, [0, 1, 1, 1]
    if with_masked_sample:
        losses, mask, samples = [*losses, 9.0], [*mask, False], [*samples, 2]
    weights = weights_for(mask, samples, 3, "token-mean")
    values = torch.tensor(losses)
    assert (reduce_loss(values[:1], weights[:1]) + reduce_loss(values[1:], weights[1:])).item() == 1.75


def test_truncated_and_masked_tokens_do_not_count():
    weights = weights_for([True] * 4 + [False] * 4, [0] * 4 + [1] * 4, 2, "token-mean")
    assert reduce_loss(torch.ones(8), weights).item() == 1.0


@pytest.mark.parametrize("mode", MODES)
def test_a_response_without_trained_tokens_changes_nothing(mode):
    plain = weights_for([True, True, True], [0, 0, 1], 2, mode)
    longer = weights_for([True, True, False, True], [0, 0, 1, 2], 4, mode)  # sample 1 masked, sample 3 empty
    assert longer.tolist() == [*plain[:2].tolist(), 0.0, plain[2].item()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("losses", [[3.0, math.nan], []])
def test_everything_masked_gives_zero_loss_and_zero_gradient(mode, losses):
    weights = weights_for([False] * len(losses), [0] * len(losses), 1, mode)
    values = torch.tensor(losses, requires_grad=True)
    loss = reduce_loss(values, weights)
    loss.backward()
    assert loss.item() == 0.0
    assert values.grad.tolist() == [0.0] * len(losses)


def test_empty_response_next_to_one_of_three_tokens():
    weights = weights_for([True] * 3, [0] * 3, 2, "token-mean")
    assert weights.tolist() == pytest.approx([1 / 3] * 3)


def test_tokens_zeroed_by_a_corrector_stay_in_the_denominator():  # (4.3)
    weights = weights_for([True] * 4, [0] * 4, 1, "token-mean")
    kept = torch.tensor([1.0, 0.0, 0.0, 1.0])
    assert reduce_loss(kept * 2.0, weights).item() == 1.0


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_garbage_at_untrained_positions_changes_neither_value_nor_gradient(garbage):
    losses = torch.tensor([1.0, garbage, 3.0], requires_grad=True)
    weights = weights_for([True, False, True], [0, 0, 0], 1, "token-mean")
    loss = reduce_loss(losses, weights)
    loss.backward()
    assert loss.item() == 2.0
    assert losses.grad.tolist() == [0.5, 0.0, 0.5]


batches = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(-5, 5, width=32)), min_size=1, max_size=24)


@settings(deadline=None, max_examples=100)
@given(batches, st.sampled_from(MODES), st.lists(st.integers(0, 24), max_size=5))
def test_any_split_into_parts_gives_the_same_loss_and_gradient(tokens, mode, cuts):  # (4.2)
    samples, mask, values = (list(column) for column in zip(*tokens, strict=True))
    weights = weights_for(mask, samples, 4, mode)

    def gradient(parts):
        policy = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        total = 0.0
        for start, stop in parts:
            share = reduce_loss(policy[start:stop].square(), weights[start:stop].double())
            share.backward()
            total += share.item()
        return total, policy.grad

    ends = sorted({0, len(tokens), *(min(cut, len(tokens)) for cut in cuts)})
    whole, whole_gradient = gradient([(0, len(tokens))])
    split, split_gradient = gradient(list(itertools.pairwise(ends)))
    assert split == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(split_gradient, whole_gradient)


@settings(deadline=None, max_examples=100)
@given(batches, st.sampled_from(MODES))
def test_equals_a_slow_loop_over_responses(tokens, mode):
    responses = {}
    for sample, trained, value in tokens:
        if trained:
            responses.setdefault(sample, []).append(value)
    parts = list(responses.values())
    if not parts:
        expected = 0.0
    elif mode == "token-mean":
        expected = sum(map(sum, parts)) / sum(map(len, parts))
    else:
        divisor = {"seq-mean-token-mean": len, "seq-mean-token-sum": lambda _: 1}.get(mode, lambda _: 8)
        expected = sum(sum(part) / divisor(part) for part in parts) / len(parts)
    samples, mask, values = (list(column) for column in zip(*tokens, strict=True))
    got = reduce_loss(torch.tensor(values, dtype=torch.float64), weights_for(mask, samples, 4, mode).double())
    assert got.item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_refusals():
    with pytest.raises(ValueError, match=r"mode must be one of .*; got 'mean'"):
        weights_for(MASK, SAMPLES, 3, "mean")
    with pytest.raises(ValueError, match="needs fixed_length of at least 1; got None"):
        weights_for(MASK, SAMPLES, 3, "seq-mean-token-sum-norm", fixed_length=None)
    with pytest.raises(ValueError, match="needs fixed_length of at least 1; got 0"):
        weights_for(MASK, SAMPLES, 3, "seq-mean-token-sum-norm", fixed_length=0)
    with pytest.raises(ValueError, match="got 8 with 'token-mean'"):
        weights_for(MASK, SAMPLES, 3, "token-mean", fixed_length=8)
    with pytest.raises(IndexError, match=r"sample_ids must lie in \[0, 2\); got values from 0 to 2"):
        weights_for(MASK, SAMPLES, 2, "token-mean")
    mask, samples = torch.tensor(MASK), torch.tensor(SAMPLES)
    with pytest.raises(TypeError, match=r"loss_mask must be torch\.bool"):
        loss_weights(mask.float(), samples, 3, mode="token-mean")
    with pytest.raises(ValueError, match="sample_ids must have the shape of loss_mask"):
        loss_weights(mask, samples[:2], 3, mode="token-mean")
    with pytest.raises(ValueError, match="weights must have the shape of per_token_loss"):
        reduce_loss(torch.zeros(2), torch.zeros(1))
