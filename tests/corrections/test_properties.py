"""Properties of every corrector, on random tokens: bounds, clip fraction, order, padding, one weight per response."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlhf_algos.corrections import (
    TIS,
    Correction,
    IcePop,
    ImportanceSampling,
    NoCorrection,
    SequenceMask,
    SequenceTIS,
    check_corrector,
    correction_metrics,
    make_corrector,
)

quick = settings(deadline=None, max_examples=60)

bounds = st.tuples(st.floats(0, 3), st.floats(0, 3)).map(sorted)
veto_bounds = st.tuples(st.floats(0, 3), st.floats(0, 30)).map(sorted) | st.just([None, None])
token_wise = st.one_of(
    st.sampled_from([NoCorrection(), ImportanceSampling()]),
    st.builds(lambda kind, ends: kind(*ends), st.sampled_from([TIS, IcePop]), bounds),
)
sequence_level = st.builds(
    lambda kind, ends, aggregate, veto: kind(*ends, aggregate, *veto),
    st.sampled_from([SequenceTIS, SequenceMask]),
    bounds,
    st.sampled_from(["geometric", "product"]),
    veto_bounds,
)
correctors = token_wise | sequence_level
# Log-ratio, sample id, trained; a few ids, so that responses have several tokens.
token_lists = st.lists(
    st.tuples(st.floats(-25, 25) | st.floats(-1, 1), st.sampled_from([-7, 0, 3, 10**15]), st.booleans()),
    min_size=1,
    max_size=20,
)


def correct(corrector, tokens):
    log_ratio, samples, mask = zip(*tokens, strict=True)
    return corrector.correct(
        torch.tensor(log_ratio, dtype=torch.float64), torch.tensor(samples), torch.tensor(mask, dtype=torch.bool)
    )


def trained(tokens, values):
    return [value for (_, _, mask), value in zip(tokens, values.tolist(), strict=True) if mask]


def far_from_the_bounds(corrector, *ratios):
    """A ratio on a bound may change sides by a rounding: of exp, or of a sum in another order."""
    ends = [getattr(corrector, name, None) for name in ("low", "high", "token_low", "token_high")]
    return all(
        end is None or abs(ratio - end) > 1e-9 * (1 + end) for end in ends for values in ratios for ratio in values
    )


def assume_same(corrector, tokens, found, wanted):
    """Assert that both fields agree; skips what a rounding could decide."""
    clamped = [math.exp(min(max(log_ratio, -20.0), 20.0)) for log_ratio, _, mask in tokens if mask]
    assume(far_from_the_bounds(corrector, clamped, trained(tokens, wanted.ratios)))
    for field, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(field, expected, rtol=1e-12, atol=0)


@quick
@given(correctors, token_lists)
def test_weights_stay_inside_their_bounds(corrector, tokens):
    weights, ratios = correct(corrector, tokens)
    for weight, ratio in zip(trained(tokens, weights), trained(tokens, ratios), strict=True):
        assert math.exp(-20) * 0.999 <= ratio <= math.exp(20) * 1.001
        assert 0.0 <= weight < math.inf
        if isinstance(corrector, TIS):
            assert corrector.low <= weight <= corrector.high
        elif isinstance(corrector, SequenceTIS):
            assert corrector.low <= weight <= corrector.high or weight == 0.0
        elif isinstance(corrector, IcePop | SequenceMask):
            assert weight == 0.0 or (weight == ratio and corrector.low <= weight <= corrector.high)


@quick
@given(token_wise, token_lists)
def test_token_wise_weights_are_the_formula(corrector, tokens):
    weights, ratios = correct(corrector, tokens)
    for (log_ratio, _, mask), weight, ratio in zip(tokens, weights.tolist(), ratios.tolist(), strict=True):
        if not mask:
            assert weight == ratio == 1.0
            continue
        assert ratio == pytest.approx(math.exp(min(max(log_ratio, -20.0), 20.0)))
        if isinstance(corrector, TIS):
            expected = min(max(ratio, corrector.low), corrector.high)
        elif isinstance(corrector, IcePop):
            expected = ratio if corrector.low <= ratio <= corrector.high else 0.0
        else:
            expected = 1.0 if isinstance(corrector, NoCorrection) else ratio
        assert weight == expected


@quick
@given(sequence_level, token_lists)
def test_sequence_weights_are_the_formula(corrector, tokens):
    weights, ratios = correct(corrector, tokens)
    for sample in {sample for _, sample, mask in tokens if mask}:
        mine = [min(max(x, -20.0), 20.0) for x, other, mask in tokens if mask and other == sample]
        total = math.fsum(mine) / (len(mine) if corrector.aggregate == "geometric" else 1)
        ratio = math.exp(min(max(total, -20.0), 20.0))
        tokens_of_it = [math.exp(x) for x in mine]
        assume(far_from_the_bounds(corrector, [ratio], tokens_of_it))
        expected = min(max(ratio, corrector.low), corrector.high)
        if isinstance(corrector, SequenceMask):
            expected = ratio if corrector.low <= ratio <= corrector.high else 0.0
        if corrector.token_low is not None and (
            min(tokens_of_it) < corrector.token_low or max(tokens_of_it) > corrector.token_high
        ):
            expected = 0.0
        found = {
            (weight, ratio)
            for (_, other, mask), weight, ratio in zip(tokens, weights.tolist(), ratios.tolist(), strict=True)
            if mask and other == sample
        }
        assert len(found) == 1  # one weight and one ratio for all trained tokens of the response
        assert found.pop() == (pytest.approx(expected), pytest.approx(ratio))


@quick
@given(correctors, token_lists)
def test_metrics_are_their_definitions(corrector, tokens):
    correction = correct(corrector, tokens)
    weights, ratios = (trained(tokens, values) for values in correction)
    metrics = {name: trained(tokens, values) for name, values in correction_metrics(correction).items()}
    assert metrics["tis"] == ratios
    assert metrics["tis_abs"] == [abs(ratio - 1) for ratio in ratios]
    assert metrics["tis_weight"] == weights
    assert sum(metrics["tis_clipfrac"]) == sum(w != r for w, r in zip(weights, ratios, strict=True))
    assert sum(metrics["tis_zero_fraction"]) == weights.count(0.0)


@quick
@given(correctors, token_lists, st.randoms())
def test_the_order_of_tokens_does_not_matter(corrector, tokens, random):
    order = random.sample(range(len(tokens)), len(tokens))
    expected = correct(corrector, tokens)
    found = correct(corrector, [tokens[i] for i in order])
    back = torch.tensor(order).argsort()
    assume_same(corrector, tokens, Correction(found.weights[back], found.ratios[back]), expected)


@quick
@given(
    correctors,
    token_lists,
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.sampled_from([math.nan, math.inf, -math.inf, 1e30, 0.0]),
            st.sampled_from([-7, 0, 3, 99]),
        ),
        max_size=6,
    ),
)
def test_padding_does_not_matter(corrector, tokens, pads):
    padded, is_pad = list(tokens), [False] * len(tokens)
    for place, garbage, sample in pads:
        padded.insert(place, (garbage, sample, False))
        is_pad.insert(place, True)
    kept = ~torch.tensor(is_pad)
    weights, ratios = correct(corrector, padded)
    assert (weights[~kept] == 1.0).all()
    assert (ratios[~kept] == 1.0).all()
    assume_same(corrector, tokens, Correction(weights[kept], ratios[kept]), correct(corrector, tokens))


@quick
@given(correctors, token_lists, token_lists)
def test_other_responses_do_not_matter(corrector, tokens, others):
    others = [(log_ratio, sample + 1, mask) for log_ratio, sample, mask in others]
    weights, ratios = correct(corrector, others + tokens)
    own = Correction(weights[len(others) :], ratios[len(others) :])
    assume_same(corrector, tokens, own, correct(corrector, tokens))


@quick
@given(correctors)
def test_settings_build_an_equal_corrector(corrector):
    rebuilt = make_corrector(corrector.settings())
    assert rebuilt == corrector
    assert hash(rebuilt) == hash(corrector)


@settings(deadline=None, max_examples=15)
@given(correctors)
def test_check_corrector_accepts_all_options(corrector):
    check_corrector(corrector)
