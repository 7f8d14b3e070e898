"""Every algorithm learns, with the real learner in this process and batches that its own model samples: no engine."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_algos.algorithms import ALGORITHMS, algorithm_class
from rlhf_algos.driver.advantages import with_advantages
from rlhf_algos.envs import PromptSpace, UnicodeText
from rlhf_algos.metrics import LEARNER, TOKENS, is_listed
from tests.self_sampling import sample

ROOT = Path(__file__).parents[2]
ITERATIONS = 12
SPACES = {DEFAULT_MODULE_ID: (PromptSpace(), UnicodeText())}


def example(name, monkeypatch):
    """A module of `examples/`, under its own name as with its folder on PYTHONPATH."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def configured(config, model):
    """Two optimizer steps in an iteration, so that the second one's ratio is not 1."""
    config = (
        config.environment("rlhf_algos/Addition-v0")
        .language_model(str(model))
        .learners(num_learners=0, num_threads_per_learner=1)
        .training(lr=1e-2, minibatch_size=32, corrector="tis")
        .debugging(seed=0)
    )
    config.validate()
    return config


@pytest.fixture(scope="module")
def trained(peaked_models):
    """A function that trains with a configuration on one learner, built anew each time: rewards, and the metrics."""
    learners = []

    def train(config, iterations=ITERATIONS):
        config = configured(config, peaked_models["untied"])
        if learners:
            learners[0].rebuild(config, config.get_multi_rl_module_spec(spaces=SPACES))
        else:
            learners.append(config.build_learner(spaces=SPACES))
        (learner,) = learners
        rewards, metrics = [], {}
        for version in range(iterations):
            batch = with_advantages(
                sample(learner.module[DEFAULT_MODULE_ID].policy, version=version), config.advantages
            )
            metrics = learner.update_from_rollouts(batch, env_steps_sampled=64 * version, weight_version=version)
            rewards.append(float(np.mean(batch.rewards)))
        return rewards, metrics

    yield train
    for learner in learners:
        learner.engine.destroy()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns(trained, name):
    rewards, metrics = trained(algorithm_class(name).get_default_config())
    assert rewards[-1] > rewards[0] + 0.2, rewards
    # What was sampled and what is trained are one model.
    assert metrics["train_rollout_logprob_abs_diff"] < 1e-5
    if name in ("grpo", "gspo"):
        assert metrics["pg_clipfrac"] > 0
    assert [key for key in metrics if not is_listed(f"{LEARNER}/{key}")] == []


def test_an_algorithm_from_outside_learns(trained, monkeypatch):
    """`examples/my_algorithm.py`, and the command line finds it by its dotted path."""
    from rlhf_algos.commands.config.run_config import read_run_config

    module = example("my_algorithm", monkeypatch)
    rewards, metrics = trained(module.CISPOConfig().training(clip_high=0.1))
    assert rewards[-1] > rewards[0] + 0.2, rewards
    assert 0 < metrics["cispo_clipfrac"] < 1 and "tis_weight" in metrics
    run = read_run_config(ROOT / "examples/configs/addition_grpo.yaml", ["algorithm=my_algorithm.CISPO"])
    assert type(run.build()) is module.CISPOConfig


def test_a_metric_from_outside_is_measured(trained, monkeypatch):
    """`examples/my_metric.py`: the mean over the batch's tokens of what the loss returns."""
    from rlhf_algos.driver.batch_metrics import reduction_of

    _, metrics = trained(example("my_metric", monkeypatch).MeasuredConfig(), iterations=1)
    assert 0 <= metrics["sure_fraction"] < 1 and "pg_clipfrac" in metrics
    assert reduction_of(f"{LEARNER}/sure_fraction") == TOKENS
