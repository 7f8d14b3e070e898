"""Configurations of the toy algorithm, as files."""

import json

import pytest

from rlhf_algos.cli import main

TOY = {
    "algorithm": "tests.commands.toy_algorithm.Toy",
    "name": "toy",
    "iterations": 3,
    "evaluate_every": 2,
    "environment": {"env": "rlhf_algos/Addition-v0", "env_config": {}},
    "debugging": {"seed": 0},
}


@pytest.fixture
def command(tmp_path, capsys):
    """A function that runs `train` or `sweep` with the toy, changed by `options`; returns status, output, errors."""

    def run(name, *arguments, env_config=None, **options):
        config = TOY | options
        config["environment"] = config["environment"] | {"env_config": env_config or {}}
        file = tmp_path / "toy.json"
        file.write_text(json.dumps(config))
        status = main([name, str(file), "--runs", str(tmp_path / "runs"), *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def run_folder(tmp_path):
    """A function that returns the one run folder there is."""

    def find():
        (folder,) = (tmp_path / "runs").iterdir()
        return folder

    return find
