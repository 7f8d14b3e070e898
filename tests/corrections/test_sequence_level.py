"""Sequence-level correctors: MATH 5.4 and 5.5."""

import math
import re

import pytest
import torch

from rlhf_algos.corrections import TIS, Corrector, IcePop, SequenceCorrector, SequenceMask, SequenceTIS

LOG2 = math.log(2.0)
# Response 30 has ratios 2, 4, 1/2 (product 4, mean 4^(1/3)); 11 has 4, 4 (16 and 4); 7 has one of 1/4. The token of
# 11 in between and the whole of response 5 are untrained.
SAMPLES = [30, 11, 7, 30, 11, 11, 5, 30]
LOG_RATIO = [LOG2, 2 * LOG2, -2 * LOG2, 2 * LOG2, 9.0, 2 * LOG2, math.nan, -LOG2]
MASK = [True, True, True, True, False, True, False, True]


def correct(corrector, log_ratio=LOG_RATIO, samples=SAMPLES, mask=MASK, dtype=torch.float64):
    return corrector.correct(torch.tensor(log_ratio, dtype=dtype), torch.tensor(samples), torch.tensor(mask))


def by_response(values):
    """The value of each response, after a check that all its trained tokens share it."""
    found = {}
    for sample, trained, value in zip(SAMPLES, MASK, values.tolist(), strict=True):
        if trained:
            assert found.setdefault(sample, value) == value
        else:
            assert value == 1.0
    return found


GEOMETRIC = {30: 4 ** (1 / 3), 11: 4.0, 7: 0.25}
PRODUCT = {30: 4.0, 11: 16.0, 7: 0.25}


@pytest.mark.parametrize("corrector", [SequenceTIS, SequenceMask])
def test_ratio_of_a_response(corrector):
    assert by_response(correct(corrector(aggregate="geometric")).ratios) == pytest.approx(GEOMETRIC)
    assert by_response(correct(corrector(aggregate="product")).ratios) == pytest.approx(PRODUCT)
    assert by_response(correct(corrector()).ratios) == pytest.approx(GEOMETRIC)  # the documented default


@pytest.mark.parametrize(
    ("corrector", "expected"),
    [
        (SequenceTIS(), {30: 4 ** (1 / 3), 11: 2.0, 7: 0.25}),
        (SequenceTIS(low=0.5, high=3.0), {30: 4 ** (1 / 3), 11: 3.0, 7: 0.5}),
        (SequenceTIS(high=5.0, aggregate="product"), {30: 4.0, 11: 5.0, 7: 0.25}),
        (SequenceMask(), {30: 4 ** (1 / 3), 11: 0.0, 7: 0.0}),
        (SequenceMask(low=0.2, high=5.0), {30: 4 ** (1 / 3), 11: 4.0, 7: 0.25}),
        (SequenceMask(high=5.0, aggregate="product"), {30: 4.0, 11: 0.0, 7: 0.0}),
    ],
    ids=repr,
)
def test_weights(corrector, expected):
    assert by_response(correct(corrector).weights) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "rejected"),
    [
        ({"token_high": 3.0}, {30, 11}),
        ({"token_low": 0.3}, {7}),
        ({"token_low": 0.6}, {30, 7}),
        ({"token_low": 0.3, "token_high": 3.0}, {30, 11, 7}),
        ({"token_low": 0.2, "token_high": 4.5}, set()),
        ({}, set()),
    ],
)
@pytest.mark.parametrize("corrector", [SequenceTIS, SequenceMask])
def test_one_trained_token_vetoes_its_response(corrector, options, rejected):
    wide = {"low": 0.0, "high": 100.0}
    kept = by_response(correct(corrector(**wide)).weights)
    found = correct(corrector(**wide, **options))
    assert by_response(found.weights) == {
        sample: 0.0 if sample in rejected else weight for sample, weight in kept.items()
    }
    # The veto changes no ratio: the metrics show what was rejected.
    assert by_response(found.ratios) == pytest.approx(GEOMETRIC)


def test_ends_are_inside():
    token = {"log_ratio": [0.0, 0.0], "samples": [1, 2], "mask": [True, True]}
    assert correct(SequenceMask(low=1.0, high=1.0), **token).weights.tolist() == [1.0, 1.0]
    assert correct(SequenceMask(low=1.0), **token).weights.tolist() == [1.0, 1.0]
    assert correct(SequenceMask(low=0.0, high=1.0), **token).weights.tolist() == [1.0, 1.0]
    assert correct(SequenceMask(token_low=1.0, token_high=1.0), **token).weights.tolist() == [1.0, 1.0]
    assert correct(SequenceMask(low=1.0001), **token).weights.tolist() == [0.0, 0.0]
    assert correct(SequenceMask(high=0.9999), **token).weights.tolist() == [0.0, 0.0]
    assert correct(SequenceTIS(token_low=1.0001), **token).weights.tolist() == [0.0, 0.0]
    assert correct(SequenceTIS(token_high=0.9999), **token).weights.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_length(dtype):  # 10,000 tokens each off by -0.001
    tokens = {"log_ratio": [-0.001] * 10_000, "samples": [3] * 10_000, "mask": [True] * 10_000, "dtype": dtype}
    for corrector, ratio in (
        (SequenceTIS(), 0.9990),
        (SequenceTIS(aggregate="geometric"), 0.9990),
        (SequenceTIS(aggregate="product"), 4.54e-5),
    ):
        weights, ratios = correct(corrector, **tokens)
        assert ratios.unique().tolist() == pytest.approx([ratio], rel=1e-4)
        assert weights.unique().tolist() == pytest.approx([ratio], rel=1e-4)
    assert correct(SequenceMask(), **tokens).weights.unique().tolist() == pytest.approx([0.999], rel=1e-4)
    assert correct(SequenceMask(aggregate="product"), **tokens).weights.unique().tolist() == [0.0]


@pytest.mark.parametrize(
    ("aggregate", "log_ratio", "expected"),
    [
        ("product", [1000.0, 5.0], 20.0),
        ("product", [15.0, 15.0], 20.0),
        ("product", [-15.0, -15.0], -20.0),
        ("product", [math.inf, -math.inf], 0.0),  # each token is clamped first, so this is no NaN
        ("product", [1000.0, -990.0], 0.0),
        ("geometric", [1000.0, 0.0], 10.0),
        ("geometric", [math.inf, 0.0, 0.0, 0.0], 5.0),
        ("geometric", [-math.inf, -math.inf], -20.0),
    ],
)
def test_the_clamp(aggregate, log_ratio, expected):  # (5.6)
    corrector = SequenceTIS(high=1e9, aggregate=aggregate)
    found = correct(corrector, log_ratio, [1] * len(log_ratio), [True] * len(log_ratio))
    assert found.ratios.log().tolist() == pytest.approx([expected] * len(log_ratio))
    assert found.weights.log().tolist() == pytest.approx([expected] * len(log_ratio))


@pytest.mark.parametrize("token_high", [4.8e8, None])
def test_the_veto_sees_the_clamped_ratio_of_a_token(token_high):
    weights, _ = correct(SequenceTIS(token_high=token_high), [math.inf, 0.0], [1, 1], [True, True])
    assert weights.tolist() == ([0.0, 0.0] if token_high else [2.0, 2.0])


@pytest.mark.parametrize("aggregate", ["geometric", "product"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_response_of_one_token_gets_what_the_token_wise_form_gives(aggregate, dtype):
    log_ratio, samples, mask = torch.linspace(-25, 25, 101).tolist(), list(range(101)), [True] * 101
    tokens = {"log_ratio": log_ratio, "samples": samples, "mask": mask, "dtype": dtype}
    for whole, single in (
        (SequenceTIS(0.1, 3.0, aggregate), TIS(0.1, 3.0)),
        (SequenceMask(0.1, 3.0), IcePop(0.1, 3.0)),
    ):
        for found, expected in zip(correct(whole, **tokens), correct(single, **tokens), strict=True):
            assert torch.equal(found, expected)


def test_weight_of_a_ratio_is_refused():
    message = (
        "SequenceMask has no weight(ratio): one weight belongs to a whole response and depends on the ratios of all "
        "its tokens. Call correct(), or use a token-wise corrector (score centering needs one)."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        SequenceMask().weight(torch.ones(2))
    assert not SequenceMask.elementwise
    assert not SequenceTIS.elementwise
    assert Corrector.elementwise


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"aggregate": "mean"},
            ValueError,
            "SequenceTIS: aggregate must be one of ('geometric', 'product'); got 'mean'",
        ),
        (
            {"low": 3.0},
            ValueError,
            "SequenceTIS: low and high must be finite with 0 <= low <= high; got low=3.0, high=2.0. For no upper bound "
            "give high=1e9: no ratio exceeds e^20, about 4.9e8.",
        ),
        (
            {"token_low": 2.0, "token_high": 1.0},
            ValueError,
            "SequenceTIS: token_low and token_high must be finite with 0 <= token_low <= token_high; got "
            "token_low=2.0, token_high=1.0. None switches that side of the veto off.",
        ),
        ({"token_low": "1"}, TypeError, "SequenceTIS: token_low must be a Python number; got '1' (str)"),
    ],
)
def test_options_are_checked(options, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        SequenceTIS(**options)


@pytest.mark.parametrize(
    "options", [{"token_low": -0.1}, {"token_high": -0.1}, {"token_low": math.nan}, {"token_high": math.inf}]
)
def test_a_veto_bound_out_of_range(options):
    with pytest.raises(ValueError, match="token_low and token_high must be finite"):
        SequenceMask(**options)


class Squared(SequenceCorrector):
    """A user's own sequence-level form."""

    def sequence_weight(self, ratio):
        return ratio.square()


def test_a_form_of_your_own():
    assert by_response(correct(Squared()).weights) == pytest.approx({s: r**2 for s, r in GEOMETRIC.items()})

    class Wrong(SequenceCorrector):
        def sequence_weight(self, ratio):
            return ratio.sum()

    message = "the result of Wrong.sequence_weight must have the shape of ratio: expected (3,), got ()"
    with pytest.raises(ValueError, match=re.escape(message)):
        correct(Wrong())
