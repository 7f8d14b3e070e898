"""Train-rollout mismatch diagnostics: MATH 9; sums over parts of unequal size, and over parts with no trained token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_algos.objectives import finalize_mismatch, mismatch_sums
from rlhf_algos.objectives.mismatch import MAX_ENTRIES

KEYS = {
    "train_rollout_logprob_abs_diff",
    "train_rollout_logprob_abs_diff_max",
    "mismatch_kl",
    "mismatch_kl_k1",
    "ess",
    "ratio_outside_fraction",
}


def sums_of(ratios, mask=None):
    log_ratios = torch.tensor(ratios, dtype=torch.float64).log()
    rollout = torch.zeros_like(log_ratios)  # so that no rounding moves a ratio off the end of the band
    mask = torch.ones(len(ratios), dtype=torch.bool) if mask is None else torch.tensor(mask)
    return mismatch_sums(rollout + log_ratios, rollout, mask)


def test_worked_numbers():
    # rho = p0 / q = 1/2, 4, 1: both ends of [0.5, 2] are inside.
    metrics = finalize_mismatch(sums_of([0.5, 4.0, 1.0]))
    log2 = math.log(2)
    assert metrics == pytest.approx(
        {
            "train_rollout_logprob_abs_diff": log2,
            "train_rollout_logprob_abs_diff_max": 2 * log2,
            "mismatch_kl": ((0.5 - 1 + log2) + (4 - 1 - 2 * log2)) / 3,
            "mismatch_kl_k1": -log2 / 3,
            "ess": 5.5**2 / (3 * 17.25),
            "ratio_outside_fraction": 1 / 3,
        }
    )


def test_sign_of_k1_and_direction_of_the_ratio():
    # The sampler found its token twice as likely: q = 1/2, p0 = 1/4, rho = 1/2.
    metrics = finalize_mismatch(sums_of([0.5]))
    assert metrics["mismatch_kl_k1"] == pytest.approx(math.log(2))
    assert metrics["mismatch_kl"] == pytest.approx(math.log(2) - 0.5)


def test_both_estimates_have_the_mean_of_the_exact_divergence():
    q, p0 = torch.tensor([0.5, 0.25, 0.25]).double(), torch.tensor([0.25, 0.25, 0.5]).double()
    counts = (q * 4).long()  # a sample in which every token has exactly its frequency under q
    tokens = torch.repeat_interleave(torch.arange(3), counts)
    got = finalize_mismatch(mismatch_sums(p0.log()[tokens], q.log()[tokens], torch.ones(4, dtype=torch.bool)))
    exact = (q * (q.log() - p0.log())).sum().item()
    assert got["mismatch_kl_k1"] == pytest.approx(exact)
    assert got["mismatch_kl"] == pytest.approx(exact)


def test_ratios_just_outside_the_band_count():
    assert finalize_mismatch(sums_of([0.499, 2.001, 0.501, 1.999]))["ratio_outside_fraction"] == 0.5


def test_equal_policies():
    metrics = finalize_mismatch(sums_of([1.0, 1.0]))
    assert metrics == dict.fromkeys(KEYS, 0.0) | {"ess": 1.0}


def test_k3_of_tiny_differences():
    rollout = torch.tensor([-1.0], dtype=torch.float64)
    metrics = finalize_mismatch(mismatch_sums(rollout + 1e-8, rollout, torch.tensor([True])))
    assert metrics["mismatch_kl"] == pytest.approx(5e-17, rel=1e-3, abs=0)


def test_extreme_differences_stay_finite():
    old, rollout = torch.tensor([-900.0, 0.0]), torch.tensor([0.0, -900.0])
    metrics = finalize_mismatch(mismatch_sums(old, rollout, torch.tensor([True, True])))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["train_rollout_logprob_abs_diff"] == 900.0


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_untrained_positions_are_never_read(garbage):
    mask = torch.tensor([True, False, True, False])
    old, rollout = torch.tensor([-1.0, garbage, -2.0, -1.0]), torch.tensor([-1.5, -1.0, -2.0, garbage])
    expected = mismatch_sums(old[mask], rollout[mask], mask[mask])
    assert mismatch_sums(old, rollout, mask) == expected
    assert expected["token_count"] == 2


def combined(first, second):
    """As the docstring says: all entries are added, but the maximum."""
    both = {name: (value, second[name]) for name, value in first.items()}
    return {name: max(values) if name in MAX_ENTRIES else sum(values) for name, values in both.items()}


def test_split_over_ranks_with_unequal_counts():
    whole = finalize_mismatch(sums_of([0.3, 1.0, 1.0, 4.0]))
    assert whole["ratio_outside_fraction"] == 0.5  # a mean of means over [1/3, 1] would be 2/3
    parts = combined(sums_of([0.3, 1.0, 1.0]), sums_of([4.0]))
    assert finalize_mismatch(parts) == pytest.approx(whole)


def test_masked_ranks_do_not_count_as_zero():
    masked = sums_of([7.0], [False])
    total = sums_of([math.e])
    for part in (masked, sums_of([math.e]), masked):
        total = combined(total, part)
    assert finalize_mismatch(total)["train_rollout_logprob_abs_diff"] == pytest.approx(1.0)


def test_no_trained_token_gives_no_metric():
    assert finalize_mismatch(sums_of([2.0, 3.0], [False, False])) == {}
    assert finalize_mismatch(sums_of([])) == {}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.05, 20), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 12),
)
def test_any_split_gives_the_same_metrics(tokens, cut):
    def part(items):
        return sums_of([r for r, _ in items], [m for _, m in items]) if items else sums_of([])

    split = finalize_mismatch(combined(part(tokens[:cut]), part(tokens[cut:])))
    assert split == pytest.approx(finalize_mismatch(part(tokens)), abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["old_logprobs", "rollout_logprobs"])
def test_value_that_is_not_finite_names_the_position(which, bad):
    tensors = {"old_logprobs": torch.full((4,), -1.0), "rollout_logprobs": torch.full((4,), -1.0)}
    tensors[which][2] = bad
    with pytest.raises(ValueError, match=f"{which} must be finite at trained tokens; position 2 is"):
        mismatch_sums(**tensors, loss_mask=torch.tensor([False, True, True, True]))


def test_result_is_detached_double():
    old = torch.tensor([-1.0], requires_grad=True)
    for value in mismatch_sums(old, torch.tensor([-1.1]), torch.tensor([True])).values():
        assert value.dtype == torch.float64
        assert value.shape == ()
        assert not value.requires_grad


def test_refusals():
    zeros, mask = torch.zeros(2), torch.ones(2, dtype=torch.bool)
    with pytest.raises(TypeError, match=r"loss_mask must be torch\.bool; got torch\.float32"):
        mismatch_sums(zeros, zeros, zeros)
    with pytest.raises(ValueError, match="rollout_logprobs must have the shape of old_logprobs"):
        mismatch_sums(zeros, zeros[:1], mask)
    with pytest.raises(TypeError, match="old_logprobs"):
        mismatch_sums(zeros.bfloat16(), zeros, mask)
