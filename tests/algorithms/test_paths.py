"""Relative paths mean the folder that the script was started in, in every process; names of models stay names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ray import tune

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.paths import absolute_model
from rlhf_algos.models import resolve_model
from rlhf_algos.weight_sync import SharedMemory
from tests.learner.conftest import make_batch


def base():
    return GRPOConfig().environment("rlhf_algos/Addition-v0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that the script is started in, with a model and a saved batch; ends somewhere else."""
    shutil.copytree(resolve_model("rlhf_algos/tiny-moe"), tmp_path / "my-model")
    (tmp_path / "org").mkdir()
    (tmp_path / "b").mkdir()
    make_batch([2, 3]).save(tmp_path / "b/step-000001.safetensors")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paths_are_absolute_as_soon_as_they_are_set(folder, monkeypatch):
    config = base().language_model("my-model").debugging(save_batches="out")
    config.vllm(download_dir="cache").deepspeed(config={"csv_monitor": {"enabled": True, "output_path": "logs"}})
    offline = base().offline_data(input_=["b", Path("b/step-000001.safetensors")])
    monkeypatch.chdir(folder / "elsewhere")
    for each in (config, offline):
        each.validate()
    assert config.language_model_path == config.model_path() == str(folder / "my-model")
    assert config.save_batches == str(folder / "out")
    assert config.vllm_args == {"download_dir": str(folder / "cache")}
    assert config.deepspeed_config["csv_monitor"] == {"enabled": True, "output_path": str(folder / "logs")}
    assert offline.input_ == [str(folder / "b"), str(folder / "b/step-000001.safetensors")]


def test_a_weight_channels_folder(folder, monkeypatch):
    network = {"type": "my_channel.NetworkFolder", "folder": "weights", "also": Path("b"), "name": "b"}
    meant = network | {"folder": str(folder / "weights"), "also": str(folder / "b")}
    assert base().env_runners(weight_channel=network).weight_channel == meant
    searched = base().env_runners(weight_channel=tune.grid_search(["shared_memory", network])).weight_channel
    assert searched == {"grid_search": ["shared_memory", meant]}
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(folder))
    monkeypatch.chdir(folder / "elsewhere")
    config = base().update_from_dict({"weight_channel": {"type": "shared_memory", "parent": "b"}})
    config.validate()
    assert config.weight_channel == {"type": "shared_memory", "parent": str(folder / "b")}
    channel = SharedMemory("../b")
    assert channel.folder.is_absolute() and channel.folder.is_dir()
    channel.close()


def test_paths_within_a_search(folder):
    config = base().language_model(tune.grid_search(["my-model", "rlhf_algos/tiny-moe"]))
    config.debugging(save_batches=tune.grid_search(["out", None]))
    assert config.language_model_path == {"grid_search": [str(folder / "my-model"), "rlhf_algos/tiny-moe"]}
    assert config.save_batches == {"grid_search": [str(folder / "out"), None]}
    assert base().debugging(save_batches=tune.choice(["x"])).save_batches.categories == [str(folder / "x")]


def test_paths_that_are_set_in_another_way_are_those_of_the_folder_before_tunes(folder, monkeypatch):
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(folder))
    monkeypatch.chdir(folder / "elsewhere")
    config = base().update_from_dict({"language_model_path": "my-model", "save_batches": "out"})
    config.validate()
    assert (config.language_model_path, config.save_batches) == (str(folder / "my-model"), str(folder / "out"))


@pytest.mark.parametrize("name", ["rlhf_algos/tiny-moe", "gpt2", "org/Some-Model-1.5B", "org/with.dots_and-dashes"])
def test_names_of_models_stay_as_they_are(folder, name):
    assert absolute_model(name) == name


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("./nowhere", "nowhere"),
        ("../up", "../up"),
        ("org", "org"),
        ("my-model", "my-model"),
        ("my-model/", "my-model"),
        ("runs/a/model", "runs/a/model"),
        ("what's this", "what's this"),
        (Path("my-model"), "my-model"),
    ],
)
def test_folders_of_models_are_absolute(folder, given, meant):
    assert absolute_model(given) == os.path.normpath(folder / meant)
    assert absolute_model("~/m") == str(Path.home() / "m")
    assert absolute_model("/a/b") == "/a/b"


def test_a_folder_without_a_model_is_an_error_that_shows_where_was_looked(folder):
    for name in ("./nowhere", "/nowhere/at/all", "runs/a/model"):
        config = base().language_model(name)
        with pytest.raises(ValueError, match=rf"^language_model\('{absolute_model(name)}'\): there is no such folder"):
            config.validate()
    with pytest.raises(ValueError, match=r"org'\): the folder holds no model \(no config.json\)"):
        base().language_model("org").validate()
    with pytest.raises(ValueError, match=rf"^offline_data\(input_='{folder}/c'\): {folder}/c does not exist"):
        base().offline_data(input_="c").validate()


SCRIPT = """
import json, os, sys
import ray
from ray import tune
from rlhf_algos.algorithms.grpo import GRPOConfig
from tests.commands.toy_algorithm import Toy

class Told(Toy):
    def step(self):
        with open(os.path.join(self.config.save_batches), "a") as file:
            file.write("here")
        return super().step() | {"cwd": os.getcwd(), "model": self.config.language_model_path}

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error", _node_ip_address="127.0.0.1")
config = GRPOConfig().environment("rlhf_algos/Addition-v0").language_model("my-model")
space = config.to_dict() | {"save_batches": tune.grid_search(["out", "other"])}
results = tune.Tuner(
    Told,
    param_space=space,
    tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
    run_config=tune.RunConfig(
        name="told", storage_path=sys.argv[1], stop={"training_iteration": 1}, verbose=0,
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
    ),
).fit()
for result in results:
    metrics = result.metrics
    print("trial", json.dumps([metrics["cwd"], metrics["model"], metrics["config"]["seed"], str(result.path)]))
print("resources", Told.default_resource_request(space | {"save_batches": None}).required_resources)
ray.shutdown()
"""


def test_trials_of_tune(folder, tmp_path_factory):
    """Also on an actor that ran another trial, in whose folder it still is; and each unseeded trial draws its seed."""
    storage = tmp_path_factory.mktemp("storage")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TUNE_", "RAY_"))}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", SCRIPT, str(storage)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    lines = [line.partition(" ") for line in run.stdout.splitlines() if line.startswith(("trial", "resources"))]
    assert run.returncode == 0 and len(lines) == 3, run.stderr[-3000:] + run.stdout[-3000:]
    trials = [json.loads(line[2]) for line in lines[:2]]
    for cwd, model, _, path in trials:
        assert Path(cwd) != folder, "Tune no longer changes the folder; this test shows nothing then"
        assert model == str(folder / "my-model")
        assert Path(path).parent == storage / "told"
    assert (folder / "out").read_text() == (folder / "other").read_text() == "here"
    seeds = [seed for _, _, seed, _ in trials]
    assert all(type(seed) is int for seed in seeds) and seeds[0] != seeds[1]
    # The report reads the seed where the trial recorded it.
    from rlhf_algos.runs.tune_trials import read_trial_folder

    assert [read_trial_folder(Path(path)).seed for *_, path in trials] == seeds
    # A trial whose processes use all cores leaves no room for a second one beside it.
    assert lines[2][2] == "{'CPU': 1.1}"
