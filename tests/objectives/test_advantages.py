"""Group advantages: MATH 2; groups in any order, empty responses."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_algos.objectives import group_advantages, zero_std_group_fraction


def ids(*values):
    return torch.tensor(values, dtype=torch.int64)


def advantages(rewards, groups, **options):
    return group_advantages(torch.tensor(rewards), ids(*groups), **options).tolist()


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        ([1.0, 0.0, 0.0, 1.0], {}, [1, -1, -1, 1]),
        ([1.0, 0.0, 0.0, 0.0], {}, [math.sqrt(3)] + [-1 / math.sqrt(3)] * 3),
        ([1.0, 0.0, 0.0, 0.0], {"normalize_std": False}, [0.75, -0.25, -0.25, -0.25]),
        ([1.0, 0.0, 0.0, 0.0], {"normalize_std": False, "leave_one_out": True}, [1, -1 / 3, -1 / 3, -1 / 3]),
        ([1.0, 0.0], {"eps": 0.5}, [0.5, -0.5]),
        ([3.0, 1.0, 2.0], {"normalize_std": False}, [1, -1, 0]),
    ],
)
def test_worked_groups(rewards, options, expected):
    assert advantages(rewards, [7] * len(rewards), **options) == pytest.approx(expected, abs=1e-5)


def test_leave_one_out_compares_with_the_mean_of_the_others():
    rewards = [0.5, 2.0, -1.0, 4.0, 0.25]
    expected = [r - (sum(rewards) - r) / 4 for r in rewards]
    got = advantages(rewards, [0] * 5, normalize_std=False, leave_one_out=True)
    assert got == pytest.approx(expected, abs=1e-6)


def test_groups_are_found_by_id_in_every_completion_order():
    # group   40    3      40    3      (ids are not positions)
    samples = [(1.0, 40, 1.0), (10.0, 3, 0.0), (0.0, 40, -1.0), (10.0, 3, 0.0)]
    for order in itertools.permutations(samples):
        rewards, groups, expected = zip(*order, strict=True)
        assert advantages(rewards, groups) == pytest.approx(expected, abs=1e-5)


def test_reward_of_an_empty_response_counts():
    assert advantages([1.0, 0.0], [0, 0]) == pytest.approx([1, -1], abs=1e-5)


@pytest.mark.parametrize("reward", [0.1, 0.3, 1e6 + 0.1, -7.7, 0.0])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("options", [{}, {"eps": 0.0}, {"normalize_std": False, "leave_one_out": True}])
def test_equal_rewards_give_exactly_zero(reward, size, options):
    for dtype in (torch.float32, torch.float64):
        rewards = torch.full((size,), reward, dtype=dtype)
        assert group_advantages(rewards, ids(*[0] * size), **options).tolist() == [0.0] * size


def test_nearly_equal_rewards_are_not_called_equal():
    rewards = torch.tensor([1.0, 1.0, 1.0 + 1e-6], dtype=torch.float64)
    got = group_advantages(rewards, ids(0, 0, 0), normalize_std=False)
    torch.testing.assert_close(got, torch.tensor([-1e-6 / 3, -1e-6 / 3, 2e-6 / 3]).double(), rtol=1e-6, atol=0)


def test_zero_std_fraction_counts_groups_not_samples():
    rewards = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0])
    assert zero_std_group_fraction(rewards, ids(5, 5, 5, 6, 6)).item() == 0.5
    assert zero_std_group_fraction(rewards, ids(5, 5, 6, 6, 6)).item() == 0.5
    assert zero_std_group_fraction(rewards, ids(5, 5, 6, 5, 6)).item() == 0.0


def test_result_is_detached_and_keeps_the_dtype():
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    got = group_advantages(rewards, ids(0, 0))
    assert got.dtype == torch.float64
    assert not got.requires_grad


groups_of_rewards = st.lists(st.tuples(st.integers(0, 3), st.floats(-100, 100, width=32)), min_size=0, max_size=12).map(
    lambda pairs: pairs + [(g, float(g)) for g in range(4)] + [(g, 2.0 * g - 1) for g in range(4)]
)


@settings(deadline=None, max_examples=60)
@given(groups_of_rewards, st.randoms(use_true_random=False), st.booleans())
def test_permuting_samples_permutes_advantages(pairs, random, normalize_std):
    order = list(range(len(pairs)))
    random.shuffle(order)
    plain = advantages([r for _, r in pairs], [g for g, _ in pairs], normalize_std=normalize_std)
    mixed = advantages([pairs[i][1] for i in order], [pairs[i][0] for i in order], normalize_std=normalize_std)
    assert mixed == pytest.approx([plain[i] for i in order], rel=1e-5, abs=1e-5)


@settings(deadline=None, max_examples=60)
@given(groups_of_rewards, st.floats(-50, 50))
def test_a_constant_added_to_the_rewards_changes_nothing(pairs, constant):
    rewards = torch.tensor([r for _, r in pairs], dtype=torch.float64)
    groups = ids(*[g for g, _ in pairs])
    for options in ({"normalize_std": False}, {"normalize_std": False, "leave_one_out": True}):
        shifted = group_advantages(rewards + constant, groups, **options)
        torch.testing.assert_close(shifted, group_advantages(rewards, groups, **options), rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(groups_of_rewards, st.floats(0.5, 20))
def test_scale_of_the_rewards_is_divided_out_only_with_normalization(pairs, factor):
    rewards = torch.tensor([r for _, r in pairs], dtype=torch.float64)
    groups = ids(*[g for g, _ in pairs])
    normalized = group_advantages(rewards, groups, eps=0.0)
    torch.testing.assert_close(group_advantages(rewards * factor, groups, eps=0.0), normalized)
    centered = group_advantages(rewards, groups, normalize_std=False)
    torch.testing.assert_close(group_advantages(rewards * factor, groups, normalize_std=False), centered * factor)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_reward_that_is_not_finite_names_the_sample(bad):
    rewards = torch.tensor([0.0, 1.0, bad, 1.0])
    for function in (group_advantages, zero_std_group_fraction):
        with pytest.raises(ValueError, match="sample 2"):
            function(rewards, ids(0, 0, 1, 1))


def test_refusals():
    rewards = torch.tensor([1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match=r"single one: \[42\]"):
        group_advantages(rewards, ids(1, 1, 42))
    with pytest.raises(ValueError, match="leave_one_out=True needs normalize_std=False"):
        group_advantages(rewards, ids(1, 1, 1), leave_one_out=True)
    with pytest.raises(ValueError, match="eps"):
        group_advantages(rewards, ids(1, 1, 1), eps=-1.0)
    with pytest.raises(ValueError, match=r"expected \(3,\), got \(2,\)"):
        group_advantages(rewards, ids(1, 1))
    with pytest.raises(ValueError, match="1 dimension"):
        group_advantages(rewards[None], ids(1, 1, 1))
    with pytest.raises(TypeError, match=r"group_ids must be torch\.int64; got torch\.float32"):
        group_advantages(rewards, rewards)
    with pytest.raises(TypeError, match=r"got torch\.bfloat16"):
        group_advantages(rewards.bfloat16(), ids(1, 1, 1))
    with pytest.raises(ValueError, match="at least one group"):
        zero_std_group_fraction(rewards[:0], ids())


@pytest.mark.parametrize("scale", [1e-200, 1e39, 1e200, 1e307])
def test_divided_advantages_do_not_depend_on_the_size_of_rewards(scale):
    rewards = torch.tensor([1.0, -1.0, 1.0, 0.5], dtype=torch.float64)
    groups = torch.zeros(4, dtype=torch.int64)
    expected = group_advantages(rewards, groups, eps=0.0)
    assert torch.allclose(group_advantages(rewards * scale, groups, eps=0.0), expected, rtol=1e-12, atol=0.0)


def test_undivided_advantages_that_the_dtype_can_not_hold_are_refused():
    rewards = torch.tensor([0.0, 1.0, 1.7e308, -1.7e308], dtype=torch.float64)
    groups = torch.tensor([7, 7, 9, 9])
    with pytest.raises(ValueError, match=r"rewards of group 9 lie further apart than torch.float64 can hold"):
        group_advantages(rewards, groups, normalize_std=False, leave_one_out=True)
    small = torch.tensor([3e38, -3e38])
    with pytest.raises(ValueError, match=r"rewards of group 0 lie further apart than torch.float32 can hold"):
        group_advantages(small, torch.zeros(2, dtype=torch.int64), normalize_std=False, leave_one_out=True)
