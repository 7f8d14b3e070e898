"""Every option that a learner reads arrives in its settings, with the exchangeable parts as objects."""

import dataclasses

import pytest

from rlhf_algos.algorithms.grpo import ClippedSurrogate, GRPOConfig
from rlhf_algos.algorithms.reinforce_sc import CenteredReinforce, ReinforceSCConfig
from rlhf_algos.corrections import TIS, NoCorrection
from rlhf_algos.learner.settings import LearnerSettings
from rlhf_algos.models import resolve_model
from rlhf_algos.routing_replay import R3, NoReplay


def test_defaults_and_other_values_of_every_field():
    default = GRPOConfig().learners(num_threads_per_learner=1).learner_settings()
    other = (
        GRPOConfig()
        .language_model("some/model", dtype="bfloat16", trust_remote_code=True)
        .sampling(temperature=0.7)
        .training(
            clip_high=0.3,
            dual_clip=3.0,
            corrector={"type": "tis", "high": 3.0},
            router_replay="r3",
            kl_coefficient=0.1,
            kl_kind="k2",
            entropy_coefficient=0.01,
            loss_reduction="seq-mean-token-sum-norm",
            loss_fixed_length=16,
            lr=[[0, 1e-3], [10, 0.0]],
            grad_clip=None,
            adam_betas=[0.8, 0.9],
            adam_eps=1e-6,
            weight_decay=0.1,
            num_epochs=2,
            minibatch_size=4,
        )
        .deepspeed(zero_stage=3, offload_optimizer=True, token_budget=7, config={"steps_per_print": 3})
        .learners(num_threads_per_learner=5)
        .debugging(seed=3)
        .learner_settings()
    )
    assert default == LearnerSettings(
        token_loss=ClippedSurrogate(0.2, 0.2, None),
        model=resolve_model("rlhf_algos/tiny-moe"),
        lr=3e-4,
        grad_clip=1.0,
    )
    assert (default.corrector, default.router_replay) == (NoCorrection(), NoReplay())
    assert other == LearnerSettings(
        token_loss=ClippedSurrogate(0.2, 0.3, 3.0),
        model="some/model",
        dtype="bfloat16",
        trust_remote_code=True,
        temperature=0.7,
        corrector=TIS(high=3.0),
        router_replay=R3(),
        kl_coefficient=0.1,
        kl_kind="k2",
        entropy_coefficient=0.01,
        loss_reduction="seq-mean-token-sum-norm",
        loss_fixed_length=16,
        lr=[[0, 1e-3], [10, 0.0]],
        grad_clip=None,
        adam_betas=(0.8, 0.9),
        adam_eps=1e-6,
        weight_decay=0.1,
        num_epochs=2,
        minibatch_size=4,
        seed=3,
        zero_stage=3,
        offload_optimizer=True,
        token_budget=7,
        deepspeed_config={"steps_per_print": 3},
        threads=5,
    )
    same = [f.name for f in dataclasses.fields(other) if getattr(default, f.name) == getattr(other, f.name)]
    assert same == [], "a field that this test does not change"


def test_an_algorithm_has_the_penalties_that_it_declares():
    settings = ReinforceSCConfig().training(entropy_coefficient=0.1, tail_floor=1e-3).learner_settings()
    assert (settings.entropy_coefficient, settings.kl_coefficient) == (0.1, 0.0)
    assert settings.token_loss == CenteredReinforce(True, 1e-3) and settings.token_loss.needs_head
    assert not ReinforceSCConfig().training(score_centering=False).learner_settings().token_loss.needs_head


def test_deepspeeds_dictionary_is_made_of_them():
    made = GRPOConfig().deepspeed(zero_stage=2).training(grad_clip=0.5).learner_settings().deepspeed(1000)
    assert made["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000, "allgather_bucket_size": 1000}
    assert made["gradient_clipping"] == 0.5 and made["bf16"] == {"enabled": False}


def test_they_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GRPOConfig().learner_settings().lr = 0.0
