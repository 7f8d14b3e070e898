"""The list of metrics: names, reductions and labels agree, and everything that is measured is in it."""

import numpy as np
import pytest
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS, LEARNER_RESULTS

from rlhf_algos import metrics
from rlhf_algos.driver.batch_metrics import (
    evaluation_metrics,
    lifetime_counts,
    rollout_metrics,
    staleness_metrics,
    trained_counts,
)
from rlhf_algos.metrics import METRICS, is_listed, metric_of
from rlhf_algos.report.metrics import SECTIONS
from tests.algorithms.test_metric_reductions import FIRST


def test_places_are_where_rllib_puts_results():
    assert f"{LEARNER_RESULTS}/{DEFAULT_MODULE_ID}" == metrics.LEARNER
    assert f"{LEARNER_RESULTS}/{ALL_MODULES}" == metrics.ALL_LEARNERS
    assert f"{EVALUATION_RESULTS}/{ENV_RUNNER_RESULTS}" == metrics.EVALUATION
    assert metrics.ROLLOUT == ENV_RUNNER_RESULTS


def test_each_metric_stands_once_and_has_a_meaning_and_what_is_drawn_a_label():
    keys = [metric.key for metric in METRICS]
    assert len(set(keys)) == len(keys)
    assert all(metric.meaning.strip() and metric.form.name for metric in METRICS)
    drawn = [metric for section in SECTIONS for metric in section.metrics]
    assert all(metric.label for metric in drawn)
    # What has a label is drawn, and what stands in the report's table too.
    assert {metric.key for metric in METRICS if metric.label or metric.in_table} == {metric.key for metric in drawn}


def test_a_fraction_is_called_one():
    for metric in METRICS:
        if metric.name.endswith(("_fraction", "clipfrac")):
            assert metric.form.name == "fraction", metric.key
        if metric.name.startswith("num_") or metric.name.endswith("_lifetime"):
            assert metric.form.name == "count", metric.key


@pytest.mark.parametrize(
    ("place", "measured"),
    [
        (metrics.ROLLOUT, lambda: rollout_metrics(FIRST)),
        (metrics.ROLLOUT, lambda: lifetime_counts(FIRST, prompts_too_long=1, groups_sampled_again=2)),
        (metrics.ALL_LEARNERS, lambda: trained_counts(FIRST)),
        (metrics.STALENESS, lambda: staleness_metrics(FIRST, 5)),
        (metrics.EVALUATION, lambda: evaluation_metrics(FIRST, prompts_too_long=1)),
    ],
)
def test_what_the_driver_measures_is_listed(place, measured):
    values = measured()
    assert values
    assert [name for name in values if not is_listed(f"{place}/{name}")] == []
    assert all(np.isfinite(list(values.values())))


def test_layers_share_an_entry_and_unknown_keys_have_none():
    assert metric_of(f"{metrics.LEARNER}/route_mismatch_layer_12").name == "route_mismatch_layer_N"
    assert not is_listed(f"{metrics.LEARNER}/my_metric")
    with pytest.raises(KeyError, match="my_metric"):
        metric_of(f"{metrics.LEARNER}/my_metric")
