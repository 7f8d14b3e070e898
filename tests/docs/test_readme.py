"""The README's Python runs, block by block, as it stands there; each shows what the text beside it says.

Two things differ from a reader's run, so that this takes a minute and not ten:

* long runs are cut: where a number of iterations is not what a block is about, it is replaced by a smaller one;
* all blocks share one engine and one learner, which are made to what each block's configuration asks for as a sweep
  does between two trials. For that the engine records routes in every block, as it does in a sweep.
"""

import re
import shlex

import gymnasium
import pytest
import ray
from transformers import AutoModelForCausalLM

from rlhf_algos.algorithms.interface import LanguageModelAlgorithmConfig
from rlhf_algos.cli import main
from rlhf_algos.corrections import IcePop, make_corrector
from rlhf_algos.routing_replay import R3, make_router_replay
from tests.docs.prose import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
# In the block of correctors, which has no name of its own.
R3_LINE = 'config.training(router_replay="r3")'


def block(phrase):
    """The one block with the phrase."""
    (found,) = [text for text in BLOCKS if phrase in text]
    return found


def cut(text, iterations):
    """The block with a shorter run."""
    shorter, count = re.subn(r'(?<=for _ in range\()\d+|(?<="training_iteration": )\d+', str(iterations), text)
    assert count == 1, text
    return shorter


def run(text, name="__main__", **names):
    """Executes the block, like a script or like a module; returns what it defines."""
    names |= {"__name__": name}
    exec(compile(text, "README.md", "exec"), names)
    return names


class Shared:
    """The session's algorithm, for a block that stops its own at the end."""

    def __init__(self, algorithm):
        self._algorithm, self.stopped = algorithm, False

    def __getattr__(self, name):
        return getattr(self._algorithm, name)

    def stop(self):
        self.stopped = True


@pytest.fixture(scope="module")
def one_engine(ray_session):
    """A function to take the place of `build_algo`, and what it returned so far."""
    build, running, given = LanguageModelAlgorithmConfig.build_algo, [], []

    def build_algo(config):
        config.sampling(record_routes=True)
        if not running:
            running.append(build(config))
        else:
            assert running[0].reset_config(config), "the README's blocks no longer fit on one engine"
            running[0]._iteration = 0
        given.append(Shared(running[0]))
        return given[-1]

    yield build_algo, given
    for algorithm in running:
        algorithm.stop()


@pytest.fixture
def built(one_engine, monkeypatch, tmp_path):
    """Blocks build on the shared engine, write where the test may, and register environments for this test only."""
    monkeypatch.setattr(LanguageModelAlgorithmConfig, "build_algo", one_engine[0])
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.chdir(tmp_path)
    return one_engine[1]


def train_config():
    """The configuration of the first block, which other blocks go on with."""
    return run(block("save_pretrained"), name="module")["config"]


def test_no_block_is_left_out():
    tested = (
        "save_pretrained",
        "PromptEnv",
        "ReinforceSCConfig",
        "tune.Tuner",
        "save_batches",
        'router_replay="r3")  #',
    )
    assert sorted(map(block, tested)) == sorted(BLOCKS)


def test_train_from_python(built, tmp_path, capsys):
    run(cut(block("save_pretrained"), 2))
    before, *iterations, after, model = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in iterations] == [["1", "reward"], ["2", "reward"]]
    # The sampler is in bfloat16, the trainer in float32.
    assert all(1e-3 < float(line.split()[-1]) < 0.1 for line in iterations)
    assert 0.2 < float(before.split()[1]) < 0.6 and after.startswith("after 0.")
    assert model == f"trained model in {tmp_path / 'my-model'}" or model == "trained model in my-model"
    AutoModelForCausalLM.from_pretrained(tmp_path / "my-model")
    assert built[-1].stopped


def test_a_task_of_your_own_is_learned(built, capsys):
    text = block("PromptEnv")
    # As it stands: the rising reward is the point.
    run(text)
    rewards = [float(line) for line in capsys.readouterr().out.splitlines()]
    (iterations,) = map(int, re.findall(r"for _ in range\((\d+)\)", text))
    assert len(rewards) == iterations
    low, high = map(float, re.search(r"rises from about (0\.\d+) to (0\.\d+)", README).groups())
    assert rewards[0] == pytest.approx(low, abs=0.05)
    assert rewards[-1] == pytest.approx(high, abs=0.15)
    assert high > 3 * low


def test_the_configurations_that_correct_are_valid_and_take_effect():
    config = train_config()
    lines = block(R3_LINE).splitlines()
    for line in lines:
        run(line, config=config)
        config.validate()
    assert make_corrector(config.corrector) == IcePop(0.4, 3.0)
    assert isinstance(make_router_replay(config.router_replay), R3)
    centered = run(block("ReinforceSCConfig"), name="module")["config"]
    centered.validate()
    assert (centered.score_centering, centered.corrector, centered.router_replay) == (True, "tis", "r3")


def test_saved_batches_are_compared_and_trained_on(built, capsys):
    config = train_config()
    run(block("save_batches"), config=config)
    config.build_algo().train()
    (command,) = re.findall(r"^    \.venv/bin/rlhf-algos (replay .+)$", README, re.MULTILINE)
    assert main(shlex.split(command)) == 0
    shown = capsys.readouterr().out
    settings = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    corrections = ["none", "is", "tis", "icepop"]
    centered = [f"{corrector} + centered" for corrector in corrections]
    assert settings == [*corrections, *centered, *(f"{name} + r3" for name in corrections + centered)]
    (line,) = re.findall(r"`(config\.offline_data\(.+?\))`", README)
    offline = train_config()
    run(line, config=offline)
    offline.validate()
    assert not offline.is_online


def test_a_sweep_with_tune(ray_session, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ray.train.constants.DEFAULT_STORAGE_PATH", str(tmp_path / "ray_results"))
    # Ray is running already.
    monkeypatch.setattr(ray, "init", lambda **options: None)
    run(cut(block("tune.Tuner"), 1))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("none ", "r3 "))]
    found = {replay: (float(kl), float(routes)) for replay, kl, routes in lines}
    assert sorted(found) == ["none", "r3"]
    # On the same first batch routes differ either way, and replay takes their part of the mismatch away.
    assert min(routes for _, routes in found.values()) > 0.005
    assert found["none"][0] > 2 * found["r3"][0] > 0
