"""Corrector.correct and settings: what every corrector inherits."""

import json
import math
import re
from dataclasses import dataclass

import pytest
import torch

from rlhf_algos.corrections import (
    TIS,
    Corrector,
    IcePop,
    ImportanceSampling,
    NoCorrection,
    SequenceMask,
    SequenceTIS,
    make_corrector,
)

ALL = [
    NoCorrection(),
    ImportanceSampling(),
    TIS(),
    IcePop(),
    SequenceTIS(),
    SequenceMask(aggregate="product", token_low=0.1, token_high=9.0),
]
LOG2 = math.log(2.0)


def correct(corrector, log_ratio, mask=None, samples=None):
    log_ratio = torch.as_tensor(log_ratio)
    mask = torch.ones(log_ratio.shape, dtype=torch.bool) if mask is None else torch.tensor(mask)
    samples = torch.zeros(log_ratio.shape, dtype=torch.int64) if samples is None else torch.tensor(samples)
    return corrector.correct(log_ratio, samples, mask)


def test_the_ratio_is_trainer_over_sampler():  # (5.1): p = 1/2, q = 1/8
    weights, ratios = correct(ImportanceSampling(), [math.log(0.5) - math.log(0.125)])
    assert ratios.tolist() == pytest.approx([4.0])
    assert weights.tolist() == pytest.approx([4.0])


def test_ratios_are_those_before_f():
    weights, ratios = correct(TIS(), [2 * LOG2, -LOG2])
    assert ratios.tolist() == pytest.approx([4.0, 0.5])
    assert weights.tolist() == pytest.approx([2.0, 0.5])
    weights, ratios = correct(NoCorrection(), [2 * LOG2, -LOG2])
    assert ratios.tolist() == pytest.approx([4.0, 0.5])
    assert weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("log_ratio", "clamped"),
    [(1000.0, 20.0), (math.inf, 20.0), (-1000.0, -20.0), (-math.inf, -20.0), (20.5, 20.0), (19.5, 19.5)],
)
def test_the_clamp(log_ratio, clamped):  # (5.6)
    assert correct(ImportanceSampling(), [log_ratio]).ratios.item() == pytest.approx(math.exp(clamped), rel=1e-5)
    assert correct(TIS(high=5.0), [log_ratio]).weights.item() == (5.0 if clamped > 0 else pytest.approx(0.0, abs=1e-8))
    assert correct(IcePop(), [log_ratio]).weights.item() == 0.0


@pytest.mark.parametrize("corrector", ALL, ids=repr)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_untrained_tokens_have_weight_one_and_do_not_matter(corrector, garbage):
    mask, samples = [True, False, True, False, True], [4, 4, 9, 9, 4]
    weights, ratios = correct(corrector, [0.3, garbage, 0.9, garbage, -0.2], mask, samples)
    kept = correct(corrector, [0.3, 0.9, -0.2], None, [4, 9, 4])
    assert torch.equal(weights[mask], kept.weights)
    assert torch.equal(ratios[mask], kept.ratios)
    assert weights[[1, 3]].tolist() == [1.0, 1.0]
    assert ratios[[1, 3]].tolist() == [1.0, 1.0]


def test_an_untrained_token_has_weight_one_even_if_f_of_one_is_not():
    assert correct(TIS(high=0.5), [0.0, 0.0], [False, True]).weights.tolist() == [1.0, 0.5]
    assert correct(IcePop(low=1.5), [0.0, 0.0], [False, True]).weights.tolist() == [1.0, 0.0]
    assert correct(SequenceMask(low=1.5), [0.0, 0.0], [False, True]).weights.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("corrector", ALL, ids=repr)
def test_nothing_trained_and_nothing_at_all(corrector):
    weights, ratios = correct(corrector, [math.nan, 3.0], [False, False])
    assert weights.tolist() == ratios.tolist() == [1.0, 1.0]
    assert correct(corrector, torch.zeros(0)).weights.shape == (0,)


@pytest.mark.parametrize("corrector", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_and_nothing_carries_a_gradient(corrector, dtype):
    log_ratio = torch.tensor([0.1, -0.2], dtype=dtype, requires_grad=True)
    for values in correct(corrector, log_ratio):
        assert values.dtype == dtype
        assert not values.requires_grad


@pytest.mark.parametrize("corrector", ALL, ids=repr)
def test_a_nan_at_a_trained_token_names_the_sample(corrector):
    message = (
        "log_ratio is NaN at 2 trained token(s), the first at position 3, token 1 of sample 8: a log-probability there "
        "is NaN, or both are infinite. Nothing is replaced or skipped; look at that sample's log-probabilities."
    )
    log_ratio = [math.nan, 0.0, 0.0, math.nan, math.nan]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        correct(corrector, log_ratio, [False, True, True, True, True], [5, 8, 5, 8, 5])


@pytest.mark.parametrize("corrector", [TIS(), SequenceTIS()], ids=repr)
def test_inputs_are_checked(corrector):
    zeros, ids, mask = torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)
    with pytest.raises(TypeError, match=r"log_ratio must be torch\.float32 or torch\.float64; got torch\.bfloat16"):
        corrector.correct(zeros.bfloat16(), ids, mask)
    with pytest.raises(TypeError, match=r"sample_ids must be torch\.int64; got torch\.int32"):
        corrector.correct(zeros, ids.int(), mask)
    with pytest.raises(TypeError, match=r"loss_mask must be torch\.bool; got torch\.float32"):
        corrector.correct(zeros, ids, zeros)
    with pytest.raises(ValueError, match=r"loss_mask must have the shape of log_ratio: expected \(2,\), got \(1,\)"):
        corrector.correct(zeros, ids, mask[:1])
    with pytest.raises(ValueError, match="sample_ids must have the shape"):
        corrector.correct(zeros, ids[:1], mask)
    with pytest.raises(ValueError, match=r"log_ratio must have 1 dimension\(s\); got shape \(2, 1\)"):
        corrector.correct(zeros[:, None], ids, mask)


class Returns(Corrector):
    """A user's class whose weight is what `result` makes of the ratio."""

    def weight(self, ratio):
        return self.result(ratio)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (lambda ratio: 1.0, TypeError, "the result of Returns.weight must be a tensor; got float"),
        (
            lambda ratio: ratio.double(),
            TypeError,
            "the result of Returns.weight must be torch.float32; got torch.float64",
        ),
        (
            lambda ratio: ratio.mean(),
            ValueError,
            "the result of Returns.weight must have the shape of ratio: expected (2,), got ()",
        ),
        (
            lambda ratio: 1 / (ratio - 1),
            ValueError,
            "the result of Returns.weight must be finite; the ratio 1 has weight inf. Run check_corrector on it.",
        ),
    ],
)
def test_a_bad_weight_is_refused(result, error, message):
    corrector = Returns()
    corrector.result = result
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        correct(corrector, [1.0, 0.0])


def test_the_gradient_of_a_bad_weight_is_cut():
    scale = torch.ones((), requires_grad=True)
    corrector = Returns()
    corrector.result = lambda ratio: ratio * scale
    assert not correct(corrector, [1.0]).weights.requires_grad


def test_a_weight_without_meaning_at_untrained_tokens_is_not_looked_at():
    corrector = Returns()
    corrector.result = lambda ratio: 1 / (ratio - 1)
    assert correct(corrector, [LOG2, 7.0], [True, False]).weights.tolist() == pytest.approx([1.0, 1.0])


# ---- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("corrector", "settings"),
    [
        (NoCorrection(), {"type": "none"}),
        (ImportanceSampling(), {"type": "is"}),
        (TIS(high=3.0), {"type": "tis", "low": 0.0, "high": 3.0}),
        (IcePop(), {"type": "icepop", "low": 0.5, "high": 2.0}),
        (
            SequenceMask(token_low=0.1),
            {
                "type": "sequence_mask",
                "low": 0.5,
                "high": 2.0,
                "aggregate": "geometric",
                "token_low": 0.1,
                "token_high": None,
            },
        ),
    ],
    ids=repr,
)
def test_settings(corrector, settings):
    assert corrector.settings() == settings
    assert make_corrector(json.loads(json.dumps(settings))) == corrector


def test_equality_and_repr():
    assert TIS() == TIS(low=0.0, high=2.0)
    assert TIS() != TIS(high=3.0)
    assert TIS(low=0.5) != IcePop()
    assert repr(TIS()) == "TIS(low=0.0, high=2.0)"
    assert len({TIS(), TIS(), TIS(high=3.0)}) == 2
    with pytest.raises(AttributeError):
        TIS().high = 3.0


class Plain(Corrector):
    def weight(self, ratio):
        return ratio.detach()


class WithOption(Plain):
    def __init__(self, power=2.0):
        self.power = power


class OwnSettings(WithOption):
    def settings(self):
        return {"type": f"{__name__}.OwnSettings", "power": self.power}


@dataclass(frozen=True)
class NarrowTIS(TIS):
    high: float = 1.1


def test_a_class_without_options_needs_no_code():
    assert Plain().settings() == {"type": "tests.corrections.test_correct.Plain"}
    assert Plain() == Plain()
    assert Plain() != Returns()
    assert hash(Plain()) == hash(Plain())
    assert repr(Plain()) == "Plain()"


def test_an_option_that_settings_can_not_find_is_an_error():
    message = (
        "WithOption takes power but is no dataclass, so settings() can't find their values. Make it a frozen "
        "dataclass, or override settings()."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        WithOption().settings()
    assert repr(OwnSettings(3.0)) == "OwnSettings(power=3.0)"
    assert OwnSettings(3.0) == make_corrector(OwnSettings(3.0).settings())
    assert OwnSettings(3.0) != OwnSettings(2.0)


def test_a_subclass_of_one_of_ours_has_its_own_type():
    settings = NarrowTIS().settings()
    assert settings == {"type": "tests.corrections.test_correct.NarrowTIS", "low": 0.0, "high": 1.1}
    assert make_corrector(settings) == NarrowTIS()
    assert NarrowTIS(high=2.0) != TIS()
