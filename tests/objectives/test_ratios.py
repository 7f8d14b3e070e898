"""The clamp of MATH 5.6: value and gradient within and beyond."""

import math

import pytest
import torch

from rlhf_algos.objectives.ratios import LOG_RATIO_LIMIT, clamped_log_ratio, clamped_ratio

LOG_RATIOS = [-math.inf, -20.5, -20.0, -1.0, 0.0, 1.0, 20.0, 20.5, math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients(dtype):
    clamped = [max(-20.0, min(20.0, value)) for value in LOG_RATIOS]
    within = [float(abs(value) <= LOG_RATIO_LIMIT) for value in LOG_RATIOS]
    for function, values, slopes in (
        (clamped_log_ratio, clamped, within),
        (
            clamped_ratio,
            [math.exp(c) for c in clamped],
            [w * math.exp(c) for w, c in zip(within, clamped, strict=True)],
        ),
    ):
        log_ratio = torch.tensor(LOG_RATIOS, dtype=dtype, requires_grad=True)
        result = function(log_ratio)
        result.sum().backward()
        assert result.dtype == dtype
        assert result.tolist() == pytest.approx(values, rel=1e-6)
        assert log_ratio.grad.tolist() == pytest.approx(slopes, rel=1e-6)


def test_nan_stays_nan_to_be_noticed():
    assert clamped_ratio(torch.tensor([math.nan])).isnan().all()
