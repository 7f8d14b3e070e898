"""A run without a seed draws one of its own, which its configuration has and which repeats it."""

import random

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.algorithm import Algorithm

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.reset import as_config
from rlhf_algos.algorithms.seeds import with_seed
from rlhf_algos.learner.update import optimizer_batches
from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner


def base(seed=None):
    return GRPOConfig().environment("rlhf_algos/Addition-v0").debugging(seed=seed)


def test_unseeded_configs_differ_whatever_the_generators_of_the_process_say():
    seeds = []
    for _ in range(5):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        config = base()
        seeds.append(with_seed(config).seed)
        assert config.seed is None, "the user's own is left as it is, for the next run"
    assert len(set(seeds)) == 5
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)


def test_a_given_seed_is_kept_zero_too():
    config = base(0)
    assert with_seed(config) is config


def test_a_frozen_config_stays_frozen():
    config = base()
    config.freeze()
    seeded = with_seed(config)
    assert config.seed is None and seeded.seed is not None
    with pytest.raises(AttributeError, match="frozen"):
        seeded.seed = 3


def test_the_algorithm_has_the_seed_that_its_processes_get(monkeypatch):
    """Without processes: what RLlib's own set-up finds is what it hands to actors, learners and evaluation."""
    found = []
    monkeypatch.setattr(Algorithm, "setup", lambda self, config: found.append(self.config))
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: "a trial's")
    seeds = []
    for _ in range(2):
        algorithm = object.__new__(GRPO)
        algorithm.setup(with_frozen(base().learners(num_learners=0)))
        (config,) = found
        seeds.append(config.seed)
        assert algorithm.config is config
        assert config.get_evaluation_config_object().seed == config.seed
        algorithm.abandon()
        found.clear()
    assert seeds[0] != seeds[1] and None not in seeds


def with_frozen(config):
    config.validate()
    config.freeze()
    return config


def test_a_reset_draws_anew():
    config = base()
    seeds = {as_config(GRPOConfig(), config).seed, as_config(GRPOConfig(), config.to_dict()).seed}
    assert len(seeds) == 2 and None not in seeds


def test_processes_refuse_to_make_one_up():
    with pytest.raises(ValueError, match=r"needs debugging\(seed=...\)"):
        VLLMEnvRunner(config=base()).require_constructed()
    with pytest.raises(ValueError, match="has no seed"):
        list(optimizer_batches(4, base().training(minibatch_size=2).learner_settings(), version=0))
    orders = []
    for seed, version in ((0, 0), (1, 0), (0, 0), (0, 1)):
        settings = base(seed).training(minibatch_size=4).learner_settings()
        orders.append([step.tolist() for step in optimizer_batches(16, settings, version=version)])
    assert orders[0] == orders[2] != orders[1]
    assert orders[0] != orders[3]
