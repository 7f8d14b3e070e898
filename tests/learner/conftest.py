"""Hand-made batches, and learners for them."""

import numpy as np
import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.gspo import GSPOConfig
from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.algorithms.rloo import RLOOConfig
from rlhf_algos.batch import RolloutBatch


def make_batch(lengths, *, masked=(), seed=0, prompt_length=5, vocabulary=263, advantages=None) -> RolloutBatch:
    """Random tokens in responses of the given lengths; the samples in `masked` are not trained on."""
    rng = np.random.default_rng(seed)
    count = len(lengths)
    response_lengths = np.array(lengths, dtype=np.int64)
    prompt_lengths = np.full(count, prompt_length, dtype=np.int64) + np.arange(count) % 3
    tokens = int(response_lengths.sum())
    mask = ~np.isin(np.repeat(np.arange(count), response_lengths), list(masked))
    return RolloutBatch(
        sample_ids=np.arange(100, 100 + count, dtype=np.int64),
        group_ids=np.arange(count, dtype=np.int64) // 2,
        prompt_lengths=prompt_lengths,
        response_lengths=response_lengths,
        rewards=rng.normal(size=count),
        finish_reasons=np.zeros(count, dtype=np.uint8),
        prompt_ids=rng.integers(7, vocabulary, int(prompt_lengths.sum())).astype(np.int64),
        response_ids=rng.integers(7, vocabulary, tokens).astype(np.int64),
        loss_mask=mask,
        rollout_logprobs=rng.normal(-3, 1, tokens).astype(np.float32),
        weight_versions=np.zeros(tokens, dtype=np.int64),
        advantages=(rng.normal(size=count) if advantages is None else np.array(advantages)).astype(np.float32),
    )


CONFIGS = {"grpo": GRPOConfig, "gspo": GSPOConfig, "reinforce_sc": ReinforceSCConfig, "rloo": RLOOConfig}


def make_config(model, **overrides):
    config = (
        CONFIGS[overrides.pop("algorithm", "grpo")]()
        .environment("rlhf_algos/Addition-v0")
        .language_model(
            str(model),
            dtype=overrides.pop("dtype", "float32"),
            gradient_checkpointing=overrides.pop("gradient_checkpointing", False),
        )
        .learners(num_learners=overrides.pop("num_learners", 1), num_cpus_per_learner=0.25)
        .deepspeed(
            zero_stage=overrides.pop("zero_stage", 1),
            token_budget=overrides.pop("token_budget", 40),
            offload_optimizer=overrides.pop("offload_optimizer", False),
        )
        .training(**{"grad_clip": None, "lr": 1e-3, **overrides})
        .debugging(seed=0)
    )
    config.validate()
    return config


@pytest.fixture
def learners(learner_pool, peaked_models):
    """A function that gives learners of the session's pool, built anew with the given options.

    With learning rate 0, the weights never move; a test that wants a step asks for another.
    """

    def build(model="untied", **overrides):
        return learner_pool(make_config(peaked_models[model], **{"lr": 0.0, **overrides}))

    return build
