"""Rollout actors that are started once per session, and the library's loop over them."""

import dataclasses

import numpy as np
import pytest
import torch

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.driver.calls import on_env_runners, on_learners
from rlhf_algos.driver.crew import Weights, load
from rlhf_algos.driver.playing import Actors, sample_groups
from rlhf_algos.objectives import group_advantages
from rlhf_algos.weight_sync import SharedMemory, send_from

TRAINING_OPTIONS = ("corrector", "router_replay", "num_epochs", "minibatch_size", "kl_coefficient", "kl_kind")


def config_for(model, **overrides) -> GRPOConfig:
    config = (
        GRPOConfig()
        .environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
        .language_model(str(model), dtype="float32")
        .sampling(max_response_tokens=12, record_routes=True)
        .vllm(dtype=overrides.pop("vllm_dtype", "float32"), max_model_len=32, max_num_seqs=32)
        .env_runners(num_cpus_per_env_runner=0.25)
        .learners(num_learners=overrides.pop("num_learners", 1), num_cpus_per_learner=0.25)
        .deepspeed(zero_stage=overrides.pop("zero_stage", 1), token_budget=200)
        .training(prompts_per_iteration=4, group_size=4, lr=overrides.pop("lr", 1e-3))
        .training(**{name: overrides.pop(name) for name in TRAINING_OPTIONS if name in overrides})
        .debugging(seed=0)
    )
    config.sampling(**overrides)
    config.validate()
    return config


class Loop:
    """The library's own steps, with one group of actors shared by several groups of learners."""

    def __init__(self, actors, learners, config):
        self.actors, self.learners, self.config, self.version = actors, learners, config, 0
        self.channel = SharedMemory()
        self.publish()

    def publish(self):
        channel, version = self.channel, self.version
        on_learners(self.learners, lambda learner: send_from(learner, channel, version))
        load(self.actors, Weights(channel, version))

    def sample(self, first_group):
        actors = Actors(self.actors, restore=lambda: None, patience_s=60)
        batch = sample_groups(actors, range(first_group, first_group + 4), weight_version=self.version).batch
        # A random model earns no reward; lengths give every group a signal and each update some size.
        rewards = batch.response_lengths + np.arange(batch.num_samples) % 3.0
        advantages = group_advantages(torch.from_numpy(rewards), torch.from_numpy(batch.group_ids))
        return dataclasses.replace(batch, rewards=rewards, advantages=advantages.float().numpy())

    def iterate(self):
        batch = self.sample(self.version * 4)
        metrics = self.update(batch)
        self.version += 1
        self.publish()
        return metrics[0]

    def update(self, batch):
        version = self.version
        return on_learners(
            self.learners,
            lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0, weight_version=version),
        )

    def close(self):
        self.channel.close()


# Of the package: engines that nobody asks for any more would fill the memory that later tests need.
@pytest.fixture(scope="package")
def actors_for(ray_session, peaked_models):
    """A function that gives rollout actors: an engine is started once per (model, dtype), and configured each time."""
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    started = {}

    def get(name, dtype="float32", **overrides):
        config = config_for(peaked_models[name], vllm_dtype=dtype, **overrides)
        key = (name, dtype)
        if key in started:
            on_env_runners(started[key], lambda runner: runner.configure(config))
            return started[key]
        # An engine takes about two gigabytes: at most three at a time.
        while len(started) > 2:
            started.pop(next(iter(started))).stop()
        started[key] = EnvRunnerGroup(config=config, local_env_runner=False)
        return started[key]

    yield get
    for group in started.values():
        group.stop()


@pytest.fixture
def loop_for(actors_for, learner_pool, peaked_models):
    """A function that gives a `Loop` of the session's actors and learners."""
    loops = []

    def get(name, dtype="float32", zero_stage=1, num_learners=1, lr=1e-3, **options):
        config = config_for(peaked_models[name], zero_stage=zero_stage, num_learners=num_learners, lr=lr, **options)
        sampling = {key: value for key, value in options.items() if key not in TRAINING_OPTIONS}
        loops.append(Loop(actors_for(name, dtype, **sampling), learner_pool(config), config))
        return loops[-1]

    yield get
    for loop in loops:
        loop.close()
