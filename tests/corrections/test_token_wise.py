"""Token-wise correctors: MATH 5.1 to 5.3 and 5.6."""

import math

import pytest
import torch

from rlhf_algos.corrections import TIS, IcePop, ImportanceSampling, NoCorrection

RATIOS = [0.1, 0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("corrector", "expected"),
    [
        (NoCorrection(), [1.0, 1.0, 1.0, 1.0, 1.0]),
        (ImportanceSampling(), [0.1, 0.5, 1.0, 2.0, 4.0]),
        (TIS(), [0.1, 0.5, 1.0, 2.0, 2.0]),  # rho = 4 has weight 2
        (TIS(low=0.5), [0.5, 0.5, 1.0, 2.0, 2.0]),
        (TIS(high=3.0), [0.1, 0.5, 1.0, 2.0, 3.0]),
        (IcePop(), [0.0, 0.5, 1.0, 2.0, 0.0]),  # rho = 4 has weight 0; both ends are kept
        (IcePop(low=0.1), [0.1, 0.5, 1.0, 2.0, 0.0]),
        (IcePop(high=4.0), [0.0, 0.5, 1.0, 2.0, 4.0]),
    ],
    ids=repr,
)
def test_weights(corrector, expected, dtype):
    ratio = torch.tensor(RATIOS, dtype=dtype)
    weights = corrector.weight(ratio)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=dtype), rtol=0, atol=0)


@pytest.mark.parametrize("bound", [0.1, 0.4, 0.7, 1 / 3])
def test_the_ends_are_inside_also_where_float32_can_not_hold_the_bound(bound):
    ratio = torch.tensor([bound])
    for corrector in (IcePop(low=bound, high=1.0), IcePop(low=0.0, high=bound), TIS(low=bound, high=bound)):
        assert torch.equal(corrector.weight(ratio), ratio)
    above = torch.nextafter(ratio, torch.tensor([9.0]))
    below = torch.nextafter(ratio, torch.tensor([0.0]))
    assert IcePop(low=0.0, high=bound).weight(above).item() == 0.0
    assert IcePop(low=bound, high=1.0).weight(below).item() == 0.0


@pytest.mark.parametrize("corrector", [NoCorrection(), ImportanceSampling(), TIS(), IcePop()], ids=repr)
def test_any_shape_and_no_gradient(corrector):
    ratio = torch.tensor([*RATIOS, 8.0], requires_grad=True)
    flat, square = corrector.weight(ratio), corrector.weight(ratio.view(2, 3))  # [T], [T, k]
    assert torch.equal(flat.view(2, 3), square)
    assert not flat.requires_grad
    assert not square.requires_grad


def test_a_nan_is_not_repaired_and_an_infinity_is_no_nan():
    ratio = torch.tensor([math.nan, math.inf])
    for corrector, at_infinity in ((TIS(), 2.0), (IcePop(), 0.0)):
        weights = corrector.weight(ratio)
        assert math.isnan(weights[0])
        assert weights[1] == at_infinity


# The distribution that was sampled from, and the trainer's; the ratios are 0.25, 0.8, 1.5 and 3.6.
SAMPLER = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
TRAINER = torch.tensor([0.1, 0.24, 0.3, 0.36], dtype=torch.float64)
FUNCTION = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def bias_of(corrector):
    """E_q[w g] - E_p0[g] at one prefix, exactly, by summing over the vocabulary."""
    weights = corrector.weight(TRAINER / SAMPLER)
    return ((SAMPLER * weights * FUNCTION).sum() - (TRAINER * FUNCTION).sum()).item()


def test_bias_at_a_fixed_prefix():  # (5.3)
    ratio = TRAINER / SAMPLER
    assert bias_of(ImportanceSampling()) == pytest.approx(0.0, abs=1e-12)
    assert bias_of(NoCorrection()) == pytest.approx((SAMPLER * (1 - ratio) * FUNCTION).sum().item())

    excess = (SAMPLER * (ratio - 1.2) * FUNCTION * (ratio > 1.2)).sum().item()
    assert excess == pytest.approx(0.2 * 0.3 * 0.5 + 0.1 * 2.4 * 3.0)
    assert bias_of(TIS(low=0.0, high=1.2)) == pytest.approx(-excess)

    dropped = (SAMPLER * ratio * FUNCTION * ((ratio < 0.5) | (ratio > 2.0))).sum().item()
    assert dropped == pytest.approx(0.1 * 1.0 + 0.36 * 3.0)
    assert bias_of(IcePop(low=0.5, high=2.0)) == pytest.approx(-dropped)


@pytest.mark.parametrize("corrector", [TIS, IcePop])
@pytest.mark.parametrize(
    ("low", "high"), [(-0.1, 2.0), (3.0, 2.0), (0.5, math.inf), (math.nan, 2.0), (0.5, math.nan), (-math.inf, 2.0)]
)
def test_bounds_are_checked(corrector, low, high):
    with pytest.raises(ValueError) as caught:
        corrector(low=low, high=high)
    assert str(caught.value) == (
        f"{corrector.__name__}: low and high must be finite with 0 <= low <= high; got low={low}, high={high}. "
        "For no upper bound give high=1e9: no ratio exceeds e^20, about 4.9e8."
    )


@pytest.mark.parametrize("value", ["2", None, True, torch.tensor(2.0)])
def test_a_bound_is_a_python_number(value):
    with pytest.raises(TypeError, match=r"^TIS: high must be a Python number; got .*\(\w+\)$"):
        TIS(high=value)
    with pytest.raises(TypeError, match=r"^IcePop: low must be a Python number"):
        IcePop(low=value)


def test_equal_bounds_and_whole_numbers():
    assert TIS(low=1, high=1).weight(torch.tensor([0.2, 3.0])).tolist() == [1.0, 1.0]
    assert TIS(high=2) == TIS(high=2.0)


@pytest.mark.parametrize("corrector", [NoCorrection(), ImportanceSampling(), TIS(), IcePop()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_half_precision_is_refused(corrector, dtype):
    with pytest.raises(TypeError, match=rf"^ratio must be torch\.float32 or torch\.float64; got {dtype}$"):
        corrector.weight(torch.ones(2, dtype=dtype))
