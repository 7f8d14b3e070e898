"""The numbers of charts and table, by hand."""

from pathlib import Path

import pytest

from rlhf_algos.metrics import metric_of
from rlhf_algos.report.final_values import estimate, final_values, markdown, t_interval, wilson_interval
from rlhf_algos.report.groups import Group
from rlhf_algos.report.metrics import SECTIONS
from rlhf_algos.report.series import chart_of, charts_of, series_of
from rlhf_algos.runs.run import Run
from tests.report.hand_made import DIFFERENCE, GREEDY, REWARD, SAMPLED

REWARD_METRIC = metric_of(REWARD)
SAMPLED_METRIC = metric_of(SAMPLED)
EVALUATED = {
    "env_runners/episode_return_min": 0.0,
    "env_runners/episode_return_max": 1.0,
    "evaluation/env_runners/episode_return_min": 0.0,
    "evaluation/env_runners/episode_return_max": 1.0,
    "evaluation/env_runners/num_episodes": 10.0,
}


def run(values, key=REWARD, state="finished", **others):
    """A run with a metric's values at iterations 1, 2, ..."""
    rows = {iteration: {key: value} for iteration, value in enumerate(values, 1) if value is not None}
    return Run(Path("/run"), {}, {i: row | others for i, row in rows.items()}, state)


def test_a_curve_is_the_mean_and_its_band_smallest_to_largest():
    series = series_of([{1: 0.25, 2: 0.5}, {1: 0.75, 2: 1.0}, {1: 0.5, 2: 0.75}])
    assert series.iterations == (1, 2)
    assert series.means == (0.5, 0.75)
    assert series.lows == (0.25, 0.5)
    assert series.highs == (0.75, 1.0)
    assert series.counts == (3, 3)


def test_an_iteration_that_only_some_runs_have_is_the_mean_of_those():
    series = series_of([{1: 0.0, 2: 1.0, 3: 1.0}, {1: 1.0, 3: 0.0}])
    assert (series.means, series.counts) == ((0.5, 1.0, 0.5), (2, 1, 2))


def test_a_logarithmic_chart_leaves_out_what_is_not_positive():
    series = series_of([{1: 0.0, 2: 0.1}, {1: 0.5, 2: 0.3}], positive=True)
    assert (series.means, series.lows, series.counts) == ((0.5, pytest.approx(0.2)), (0.5, 0.1), (1, 2))


def test_a_failed_run_is_drawn_but_in_no_mean():
    group = Group("g", (run([0.5, 0.5]), run([9.0], state="failed"), run([1.5, 1.5])))
    chart = chart_of(REWARD_METRIC, [group])
    assert chart.groups[0].means == (1.0, 1.0)
    ((index, failed),) = chart.failed
    assert (index, failed.means) == (0, (9.0,))


def test_sections_without_values_are_left_out_and_their_metrics_named():
    group = Group("g", (run([0.0, 0.0], DIFFERENCE, **{REWARD: 0.5, "staleness/mean": 0.0}),))
    charts = charts_of(SECTIONS, [group])
    assert [section.name for section, _ in charts.sections] == ["reward", "staleness"]
    assert [metric.key for metric in charts.exact] == [DIFFERENCE]
    drawn = {chart.metric.key for _, section in charts.sections for chart in section}
    left_out = {metric.key for metric in (*charts.missing, *charts.exact)}
    assert drawn == {REWARD, "staleness/mean"}
    assert drawn | left_out == {metric.key for section in SECTIONS for metric in section.metrics}


def test_students_interval_by_hand():
    # Deviation sqrt(0.02), t of one degree of freedom 12.7062, so 12.7062 * 0.141421 / sqrt(2) = 1.27062.
    assert t_interval([0.7, 0.5]) == pytest.approx((0.6, -0.67062, 1.87062), abs=1e-5)
    # Deviation 1, t of two degrees of freedom 4.302653, over sqrt(3).
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, -0.484138, 4.484138), abs=1e-6)


def test_wilsons_interval_by_hand():
    # z = 1.959964: middle (0.8 + 3.841459 / 20) / 1.3841459, reach 1.41601 * sqrt(0.016 + 3.841459 / 400).
    assert wilson_interval(0.8, 10) == pytest.approx((0.490162, 0.943317), abs=2e-6)
    low, high = wilson_interval(0.0, 10)
    assert (low, high) == (pytest.approx(0.0, abs=1e-12), pytest.approx(0.277533, abs=1e-6))


def test_a_final_value_is_the_mean_of_the_last_five_recorded_iterations():
    assert estimate([run([9.0, 0.5, 0.6, None, 0.7, 0.8, 0.9])], REWARD_METRIC).value == pytest.approx(0.7)
    assert estimate([run([0.25, 0.75])], REWARD_METRIC).value == 0.5


def test_held_out_accuracy_is_that_of_the_last_evaluation():
    assert estimate([run([0.1, 0.9, None, 0.4], SAMPLED)], SAMPLED_METRIC).value == 0.4


def test_over_runs_the_interval_is_students():
    runs = [run([9.0, 0.5, 0.6, 0.7, 0.8, 0.9]), run([0.5] * 5)]
    found = estimate(runs, REWARD_METRIC)
    assert (found.value, found.low, found.high) == pytest.approx((0.6, -0.67062, 1.87062), abs=1e-5)
    assert (found.count, found.problems) == (2, None)


def test_of_one_run_held_out_accuracy_has_wilsons_interval():
    found = estimate([run([0.8], SAMPLED, **EVALUATED)], SAMPLED_METRIC)
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.490162, 0.943317), abs=2e-6)
    assert found.problems == 10
    assert str(found) == "0.8 [0.4902, 0.9433]"


@pytest.mark.parametrize(
    "changed",
    [
        {"evaluation/env_runners/num_episodes": 0.0},
        {"env_runners/episode_return_min": -1.0},
        {"evaluation/env_runners/episode_return_max": 2.0},
    ],
)
def test_without_a_number_of_problems_or_with_other_rewards_there_is_no_interval(changed):
    found = estimate([run([0.8], SAMPLED, **EVALUATED | changed)], SAMPLED_METRIC)
    assert (found.value, found.low, found.problems) == (0.8, None, None)
    assert str(found) == "0.8"


def test_of_one_run_nothing_else_has_an_interval():
    assert estimate([run([0.8], **EVALUATED)], REWARD_METRIC).low is None
    assert estimate([run([0.8], SAMPLED)], REWARD_METRIC) is None


def test_the_table_has_the_groups_that_did_not_fail_and_the_metrics_that_exist():
    groups = [
        Group("a|b <i>", (run([0.5, 0.5], **{GREEDY: 0.25}), run([0.5] * 3), run([9.0] * 4, state="failed"))),
        Group("c", (run([0.5], state="failed", **{SAMPLED: 1.0}),)),
        Group("d", (run([1.0]),)),
    ]
    table = final_values(groups)
    assert [metric.key for metric in table.metrics] == [REWARD, GREEDY]
    assert [(row.group.name, row.iterations) for row in table.rows] == [("a|b <i>", "2 to 3"), ("d", "1")]
    assert markdown(table) == (
        "| group | runs | iterations | training reward | held-out, greedy |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| a\\|b &lt;i&gt; | 2 | 2 to 3 | 0.5 [0.5, 0.5] | 0.25 |\n"
        "| d | 1 | 1 | 1 | - |\n"
    )
