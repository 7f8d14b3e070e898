"""Grids, seeds and the settings of a sweep."""

from pathlib import Path

import pytest

from rlhf_algos.commands.config.sweep_config import read_sweep_config
from rlhf_algos.commands.errors import ConfigError

ROOT = Path(__file__).parents[2]
BASE = """
algorithm: reinforce_sc
iterations: 2
environment: {env: rlhf_algos/Addition-v0, env_config: {digits: 2}}
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        file = tmp_path / "sweep.yaml"
        file.write_text(BASE + text)
        return read_sweep_config(file)

    return read_text


def test_every_combination_is_a_trial(read):
    sweep = read(
        "training: {corrector: {grid: [none, {type: tis, high: 3.0}]}, score_centering: {grid: [true, false]}}\n"
        "vllm: {dtype: {grid: [float32, bfloat16]}}\n"
        "seeds: [0, 1, 2]\n"
    )
    sweep.validate()
    trials = [run.sections for _, run in sweep.trials()]
    assert len(trials) == 24
    assert {(t["vllm"]["dtype"], t["training"]["score_centering"], t["debugging"]["seed"]) for t in trials} == {
        (dtype, centering, seed)
        for dtype in ("float32", "bfloat16")
        for centering in (True, False)
        for seed in range(3)
    }
    space, labels = sweep.param_space()
    assert labels == {
        "vllm_args/dtype": "dtype",
        "corrector": "corrector",
        "score_centering": "score_centering",
        "seed": "seed",
    }
    assert space["corrector"] == {"grid_search": ["none", {"type": "tis", "high": 3.0}]}
    assert space["evaluation_interval"] == 10


def test_values_within_values_and_names_that_would_be_the_same(read):
    sweep = read(
        "training: {lr: [[0, {grid: [1e-3, 1e-4]}], [64, 0.0]]}\n"
        "evaluation: {evaluation_config: {env_config: {digits: {grid: [2, 3]}}}}\n"
        "language_model: {dtype: {grid: [float32, bfloat16]}}\n"
        "vllm: {dtype: {grid: [float32]}}\n"
    )
    assert sweep.param_space()[1] == {
        "trainer_dtype": "language_model.dtype",
        "vllm_args/dtype": "vllm.dtype",
        "lr/0/1": "1",
        "evaluation_config/env_config/digits": "digits",
    }


@pytest.mark.parametrize(
    ("training", "sampling", "recorded"),
    [
        ("router_replay: {grid: [none, r3]}", "{}", True),
        ("router_replay: {grid: [none, r3]}", "{record_routes: false}", False),
        ("router_replay: {grid: [none, r2]}", "{}", None),
        ("router_replay: r3", "{}", None),
    ],
)
def test_trials_with_and_without_r3_record_routes_alike(read, training, sampling, recorded):
    sweep = read(f"training: {{{training}}}\nsampling: {sampling}\n")
    assert (sweep.run.sections.get("sampling") or {}).get("record_routes") is recorded
    assert bool(sweep.note) == (recorded is True)


def test_what_is_written_means_the_same(read, tmp_path):
    sweep = read(
        "training: {corrector: {grid: [none, tis]}, router_replay: {grid: [none, r3]}}\nseeds: [0, 1]\n"
        "sweep: {max_concurrent: null, stop: {x: 1}, scheduler: {type: median, metric: x, mode: max}}\n"
    )
    sweep.write(tmp_path / "sweep.json")
    again = read_sweep_config(tmp_path / "sweep.json")
    assert again.param_space() == sweep.param_space()
    assert (again.max_concurrent, again.stop, again.scheduler) == (None, {"x": 1}, sweep.scheduler)
    assert again.run.top_level() == sweep.run.top_level()
    assert type(sweep.scheduler_object()).__name__ == "MedianStoppingRule"


def test_a_sweep_without_a_grid_is_one_trial(read):
    sweep = read("")
    assert len(sweep.trials()) == 1 and sweep.param_space()[1] == {}
    assert sweep.max_concurrent == 1


def test_the_example_is_valid():
    sweep = read_sweep_config(ROOT / "examples/configs/sweep_corrections.yaml")
    sweep.validate()
    assert len(sweep.trials()) == 12
    assert set(sweep.param_space()[1].values()) == {"corrector", "router_replay", "seed"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {lr: {grid: []}}", "training.lr: a grid is a list of at least one value"),
        ("training: {lr: {grid: 3}}", "training.lr: a grid is a list of at least one value"),
        ("training: {lr: {grid: [1, 2, 1]}}", "training.lr: 1 stands twice"),
        ("training: {lr: {grid: [1, {grid: [2]}]}}", "training.lr: a grid can't stand within another grid"),
        ("seeds: [0]\ndebugging: {seed: 1}", "seeds and debugging.seed both set the seed"),
        ("seeds: 3", "seeds must be a list, got 3"),
        ("sweep: {max_concurent: 1}", "sweep.max_concurent is no known key. Did you mean sweep.max_concurrent?"),
        ("sweep: {max_concurrent: 0}", "sweep.max_concurrent must be at least 1 or null"),
        ("sweep: {stop: {x: soon}}", "sweep.stop.x must be a number, got 'soon'"),
        ("sweep: {scheduler: {type: pbt}}", "sweep.scheduler.type must be one of asha, median, got 'pbt'"),
        ("sweep: {scheduler: {type: asha}}", "sweep.scheduler: metric is missing"),
        ("sweep: {scheduler: {type: asha, metrik: x}}", "Did you mean sweep.scheduler.metric?"),
        ("training: {lr: {grid: [1e-3, fast]}}", "training.lr must be a number or a list, got 'fast'"),
        ("training: {grop_size: {grid: [2, 4]}}", "Did you mean training.group_size?"),
    ],
)
def test_a_mistake_is_named(read, text, message):
    with pytest.raises(ConfigError, match=message):
        sweep = read(text)
        sweep.validate()
        sweep.scheduler_object()
