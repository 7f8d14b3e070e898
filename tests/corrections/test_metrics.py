"""Metrics of a correction: MATH 5; raw and applied weights apart, pads and ranks counted right."""

import math

import pytest
import torch

from rlhf_algos.corrections import TIS, IcePop, ImportanceSampling, NoCorrection, SequenceMask, correction_metrics
from rlhf_algos.learner.statistics import TokenStatistics

NAMES = ["tis", "tis_abs", "tis_clipfrac", "tis_weight", "tis_zero_fraction"]


def metrics_of(corrector, *batches):
    """Means over the trained tokens of all batches of (ratios, mask), as the learner takes them."""
    statistics = TokenStatistics()
    corrected = corrector != NoCorrection()
    for ratios, mask in batches:
        log_ratio, loss_mask = torch.tensor(ratios, dtype=torch.float64).log(), torch.tensor(mask, dtype=torch.bool)
        correction = corrector.correct(log_ratio, torch.zeros(len(ratios), dtype=torch.int64), loss_mask)
        for name, values in correction_metrics(correction, corrected=corrected).items():
            statistics.add_mean(name, values, loss_mask)
    return statistics.reduce()[0]


def test_raw_and_applied_are_separate():  # weights 0.5, 4, 1
    tokens = ([0.5, 4.0, 1.0], [True, True, True])
    raw = {"tis": 5.5 / 3, "tis_abs": 3.5 / 3}
    assert metrics_of(TIS(high=2.0), tokens) == pytest.approx(
        raw | {"tis_clipfrac": 1 / 3, "tis_weight": 3.5 / 3, "tis_zero_fraction": 0.0}
    )
    assert metrics_of(IcePop(0.4, 2.0), tokens) == pytest.approx(
        raw | {"tis_clipfrac": 1 / 3, "tis_weight": 0.5, "tis_zero_fraction": 1 / 3}
    )
    assert metrics_of(ImportanceSampling(), tokens) == pytest.approx(
        raw | {"tis_clipfrac": 0.0, "tis_weight": 5.5 / 3, "tis_zero_fraction": 0.0}
    )


def test_without_a_correction_no_weight_counts_as_changed():
    assert metrics_of(NoCorrection(), ([0.5, 4.0, 1.0], [True, True, True])) == pytest.approx(
        {"tis": 5.5 / 3, "tis_abs": 3.5 / 3, "tis_weight": 1.0, "tis_zero_fraction": 0.0}
    )


def test_clipping_from_below_counts_too():
    assert metrics_of(TIS(low=0.8, high=2.0), ([0.5, 1.0], [True, True]))["tis_clipfrac"] == 0.5


def test_pads_do_not_count():  # counting the pad gives 0.5
    tokens = ([1.5, 0.5, 4.0, 5.0], [True, True, True, False])
    assert metrics_of(TIS(), tokens) == metrics_of(TIS(), ([1.5, 0.5, 4.0], [True, True, True]))
    assert metrics_of(TIS(), tokens)["tis_clipfrac"] == pytest.approx(1 / 3)
    assert metrics_of(TIS(), ([math.nan, 1.0], [False, True]))["tis"] == 1.0


def test_learners_with_unequal_counts():  # not the mean of 1/3 and 1
    first, second = ([4.0, 1.0, 1.0], [True, True, True]), ([4.0], [True])
    assert metrics_of(TIS(), first, second)["tis_clipfrac"] == 0.5
    assert metrics_of(IcePop(), first, second)["tis_zero_fraction"] == 0.5


def test_values_per_token():
    log_ratio = torch.tensor([0.0, 1.0, -1.0])
    correction = TIS().correct(log_ratio, torch.zeros(3, dtype=torch.int64), torch.tensor([True, True, False]))
    metrics = correction_metrics(correction)
    assert list(metrics) == NAMES
    for values in metrics.values():
        assert values.shape == (3,)
        assert values.dtype == torch.float32
    assert metrics["tis"].tolist() == pytest.approx([1.0, math.e, 1.0])
    assert metrics["tis_weight"].tolist() == [1.0, 2.0, 1.0]
    assert metrics["tis_clipfrac"].tolist() == [0.0, 1.0, 0.0]


def test_sequence_level_ratios_are_those_of_the_response():
    log_ratio = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    corrector = SequenceMask(token_high=5.0)
    correction = corrector.correct(log_ratio, torch.tensor([1, 1, 2]), torch.ones(3, dtype=torch.bool))
    metrics = correction_metrics(correction)
    assert metrics["tis"].tolist() == pytest.approx([math.e, math.e, 1.0])
    assert metrics["tis_zero_fraction"].tolist() == [1.0, 1.0, 0.0]
    vetoed = SequenceMask(high=5.0, token_high=5.0).correct(
        log_ratio, torch.tensor([1, 1, 2]), torch.ones(3, dtype=torch.bool)
    )
    assert correction_metrics(vetoed)["tis_clipfrac"].tolist() == [1.0, 1.0, 0.0]
