"""Reading YAML and JSON, and `--set`."""

import pytest

from rlhf_algos.commands.config.config_file import parse_yaml, read_config_file
from rlhf_algos.commands.errors import ConfigError


def read(tmp_path, text, *overrides, name="run.yaml"):
    file = tmp_path / name
    file.write_text(text)
    return read_config_file(file, overrides)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E3", 1000.0),
        ("-2.5e-4", -2.5e-4),
        ("3.e2", 300.0),
        (".5e1", 5.0),
        ("10", 10),
        ("0.9", 0.9),
        ("none", "none"),
        ("null", None),
        ("true", True),
        ("e3", "e3"),
        ("1e3x", "1e3x"),
        ("[[0, 3e-4], [20480, 0.0]]", [[0, 3e-4], [20480, 0.0]]),
        ("{type: tis, high: 3e0}", {"type": "tis", "high": 3.0}),
    ],
)
def test_values_of_yaml(text, value):
    found = parse_yaml(text, "here")
    assert found == value
    assert type(found) is type(value)


def test_json_and_yaml_mean_the_same(tmp_path):
    yaml = read(tmp_path, "training: {lr: 1e-3}\nname: a\n")
    json = read(tmp_path, '{"training": {"lr": 1e-3}, "name": "a"}', name="run.json")
    assert yaml.content == json.content == {"training": {"lr": 0.001}, "name": "a"}


def test_set_changes_adds_and_goes_into_empty_sections(tmp_path):
    file = read(
        tmp_path,
        "training: {lr: 1e-3, group_size: 4}\nsampling:\n",
        "training.lr=1e-4",
        "sampling.top_p=0.9",
        "environment.env_config.digits=3",
        "training.corrector={grid: [none, tis]}",
        "name=other",
    )
    assert file.content == {
        "training": {"lr": 1e-4, "group_size": 4, "corrector": {"grid": ["none", "tis"]}},
        "sampling": {"top_p": 0.9},
        "environment": {"env_config": {"digits": 3}},
        "name": "other",
    }
    assert file.place("training.lr") == "--set: training.lr"
    assert file.place("training.group_size") == f"{tmp_path / 'run.yaml'}: training.group_size"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("a: 1\nb: [1\n", "run.yaml", r"run.yaml, line 3: not valid YAML: expected ',' or '\]'"),
        ('{"a": 1,\n}', "run.json", "run.json, line 2: not valid JSON"),
        ("a: 1\nb: 2\na: 3\n", "run.yaml", "run.yaml, line 3: not valid YAML: 'a' stands twice"),
        ('{"a": {"b": 1, "b": 2}}', "run.json", "run.json: 'b' stands twice"),
        ("- a\n", "run.yaml", "run.yaml: expected keys such as `algorithm: grpo` at the top level, got list"),
        ("", "run.yaml", "at the top level, got nothing"),
        ("a: {1: 2}\n", "run.yaml", "run.yaml: the key 1 is a int; put it in quotes"),
        ("a: !!python/object:os.system {}\n", "run.yaml", "not valid YAML: could not determine a constructor"),
    ],
)
def test_a_file_that_can_not_be_read(tmp_path, text, name, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text, name=name)


def test_a_file_that_does_not_exist(tmp_path):
    with pytest.raises(ConfigError, match="nowhere.yaml: no such file; expected a configuration"):
        read_config_file(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lr", "--set training.lr: write it as --set section.key=value"),
        ("=3", "--set =3: write it as"),
        ("name.b=3", "--set name.b: name is 'a' and has no keys in it"),
        ("training.lr=[1", "--set training.lr: not valid YAML"),
    ],
)
def test_an_override_that_can_not_be_applied(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, "name: a\n", override)
