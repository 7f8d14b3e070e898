"""Hand-made batches and learners that keep their gradients."""

import numpy as np
import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.grpo.learner import GRPOLearner
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
        rewards=rng.normal(size=count).astype(np.float32),
        finish_reasons=np.zeros(count, dtype=np.uint8),
        prompt_ids=rng.integers(7, vocabulary, int(prompt_lengths.sum())).astype(np.int64),
        response_ids=rng.integers(7, vocabulary, tokens).astype(np.int64),
        loss_mask=mask,
        rollout_logprobs=rng.normal(-3, 1, tokens).astype(np.float32),
        weight_versions=np.zeros(tokens, dtype=np.int64),
        advantages=(rng.normal(size=count) if advantages is None else np.array(advantages)).astype(np.float32),
    )


class RecordingLearner(GRPOLearner):
    """Keeps the full gradient of every optimizer step, and the loss."""

    def configure_optimizers_for_module(self, module_id, config=None):
        super().configure_optimizers_for_module(module_id, config)
        self.gradients = []
        step = self.engine.step

        def recording_step(*args, **kwargs):
            from deepspeed.utils import safe_get_full_grad

            parameters = self._causal_lm().named_parameters()
            self.gradients.append({name: safe_get_full_grad(p).clone() for name, p in parameters})
            return step(*args, **kwargs)

        self.engine.step = recording_step


def make_config(model, **overrides) -> GRPOConfig:
    config = (
        GRPOConfig()
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
    config._learner_class = RecordingLearner
    config.validate()
    return config


def build_learners(config):
    from rlhf_algos.envs import make_prompt_env

    env = make_prompt_env("rlhf_algos/Addition-v0")
    spaces = {"default_policy": (env.observation_space, env.action_space)}
    return config.build_learner_group(rl_module_spec=config.get_multi_rl_module_spec(spaces=spaces))


@pytest.fixture
def learners(ray_session, peaked_models):
    """A function that builds a LearnerGroup for one test; all are shut down at the end."""
    started = []

    def build(model="untied", **overrides):
        started.append(build_learners(make_config(peaked_models[model], **overrides)))
        return started[-1]

    yield build
    for group in started:
        group.shutdown()


@pytest.fixture(scope="session")
def still_learners(ray_session, peaked_models):
    """Learners with learning rate 0, built once: options of the loss are changed on them between tests.

    Their weights never move, so every test starts from the same model; building takes ten seconds each time.
    """
    started = {}
    defaults = {"token_budget": 40, "loss_reduction": "token-mean", "loss_fixed_length": None}
    defaults |= {"entropy_coefficient": 0.0, "num_epochs": 1, "minibatch_size": None}

    def get(model="untied", num_learners=1, zero_stage=1, **options):
        from rlhf_algos.algorithms.base.remote import on_learners

        key = (model, num_learners, zero_stage)
        if key not in started:
            config = make_config(peaked_models[model], num_learners=num_learners, zero_stage=zero_stage, lr=0.0)
            started[key] = build_learners(config)

        def reset(learner):
            for name, value in (defaults | options).items():
                setattr(learner.config, name, value)
            learner.gradients.clear()

        on_learners(started[key], reset)
        return started[key]

    yield get
    for group in started.values():
        group.shutdown()
