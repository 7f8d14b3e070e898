"""Which runs are one group, and what a group is called."""

from pathlib import Path

import pytest

from rlhf_algos.report.groups import group_runs
from rlhf_algos.runs.run import Run


def runs(*configs):
    return [Run(Path(f"/runs/{number}"), config, {1: {}}, "finished") for number, config in enumerate(configs)]


def names(*configs):
    return [group.name for group in group_runs(runs(*configs))[0]]


def test_runs_that_differ_only_in_the_seed_are_one_group():
    found, differences = group_runs(
        runs(
            {"corrector": "tis", "seed": 0},
            {"corrector": "none", "seed": 0},
            {"corrector": "tis", "seed": 1},
            {"corrector": "none", "seed": 1},
        )
    )
    assert [group.name for group in found] == ["corrector=tis", "corrector=none"]
    assert [[run.seed for run in group.runs] for group in found] == [[0, 1], [0, 1]]
    assert [group.seeds for group in found] == ["0, 1", "0, 1"]
    assert [(d.option, d.values) for d in differences] == [("corrector", ("tis", "none"))]


@pytest.mark.parametrize("seed", [lambda s: {"debugging": {"seed": s}}, lambda s: {"debugging/seed": s}])
def test_the_seed_may_stand_with_the_debugging_options(seed):
    assert names({"lr": 1} | seed(0), {"lr": 1} | seed(1)) == ["all runs"]


def test_the_seed_of_an_environment_is_an_option_like_another():
    assert names({"env_config": {"seed": 1}}, {"env_config": {"seed": 2}}) == ["seed=1", "seed=2"]


def test_all_options_that_differ_make_the_name_the_correction_first():
    assert names(
        {"digits": 2, "router_replay": "r3", "corrector": "tis", "lr": 1e-4, "group_size": 8},
        {"digits": 2, "router_replay": "none", "corrector": "none", "lr": 1e-4, "group_size": 4},
    ) == ["corrector=tis, router_replay=r3, group_size=8", "corrector=none, router_replay=none, group_size=4"]


def test_a_nested_option_is_named_by_its_last_part_where_that_is_clear():
    one, other = {"a": {"dtype": "x"}, "b": {"rate": 1}}, {"a": {"dtype": "y"}, "b": {"rate": 2}}
    assert names(one, other) == ["dtype=x, rate=1", "dtype=y, rate=2"]
    one, other = {"a": {"dtype": "x"}, "b": {"dtype": "x"}}, {"a": {"dtype": "y"}, "b": {"dtype": "y"}}
    assert names(one, other) == ["a/dtype=x, b/dtype=x", "a/dtype=y, b/dtype=y"]


def test_a_plain_value_beside_a_mapping_is_one_option():
    found, differences = group_runs(runs({"corrector": "none"}, {"corrector": {"type": "tis", "high": 4.0}}))
    assert [group.name for group in found] == ["corrector=none", 'corrector={"high": 4.0, "type": "tis"}']
    assert len(differences) == 1


def test_values_that_are_equal_do_not_differ():
    function = "<function mapping at 0x7f43717d9d00>"
    assert names(
        {"lr": 1, "betas": [0, 1], "fn": function, "flag": True},
        {"betas": [0.0, 1.0], "lr": 1.0, "fn": function} | {"flag": True},
    ) == ["all runs"]
    assert names({"fn": function}, {"fn": function.replace("0x7f43717d9d00", "0x7f00")}) == ["all runs"]
    assert names({"flag": True}, {"flag": 1}) == ["flag=true", "flag=1"]


def test_an_option_that_one_run_lacks_is_shown_as_not_set():
    found, differences = group_runs(runs({"lr": 1, "corrector": "tis"}, {"lr": 1}, {"lr": 1, "corrector": None}))
    assert [group.name for group in found] == ["corrector=tis", "defaults", "corrector=null"]
    assert differences[0].values == ("tis", "(not set)", "null")


def test_many_differences_are_cut_to_those_that_tell_the_groups_apart():
    many = {f"option{number}": number for number in range(6)}
    others = {key: value + 10 for key, value in many.items()}
    found, differences = group_runs(
        runs(many | {"corrector": "tis"}, others | {"corrector": "none"}, others | {"corrector": "none", "option5": 99})
    )
    assert [group.name for group in found] == [
        "corrector=tis, option5=5, …",
        "corrector=none, option5=15, …",
        "corrector=none, option5=99, …",
    ]
    assert len(differences) == 7


def test_a_long_value_is_cut_unless_the_name_needs_it():
    assert names({"env": "x" * 50}, {"env": "y"}) == [f"env={'x' * 39}…", "env=y"]
    assert names({"env": "x" * 50 + "1"}, {"env": "x" * 50 + "2"}) == [f"env={'x' * 50}1", f"env={'x' * 50}2"]


def test_one_group_is_called_after_its_algorithm():
    assert names({"algorithm": "GRPO", "seed": 0}, {"algorithm": "GRPO", "seed": 1}) == ["GRPO"]


def test_runs_without_configuration_stand_alone_under_their_folders_names():
    found, differences = group_runs(runs({"lr": 1}, None, {"lr": 2}, None))
    assert [group.name for group in found] == ["lr=1", "1", "lr=2", "3"]
    assert differences[0].values == ("1", "(not set)", "2", "(not set)")


def test_failed_runs_and_runs_without_results_are_not_compared():
    whole, failed, empty = runs({"seed": 0}, {"seed": 1}, {"seed": 2})
    failed = Run(failed.path, failed.config, {1: {}}, "failed")
    empty = Run(empty.path, empty.config, {}, "running")
    (group,), _ = group_runs([whole, failed, empty])
    assert group.runs == (whole, failed, empty)
    assert group.compared == (whole,)
