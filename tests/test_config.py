"""Every option is checked when the algorithm is built, by name, and every option changes what the parts get."""

import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.learner.deepspeed_settings import deepspeed_settings


def base() -> GRPOConfig:
    return GRPOConfig().environment("rlhf_algos/Addition-v0")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.training(group_size=1), r"group_size=1 must be a whole number of at least 2"),
        (lambda c: c.training(prompts_per_iteration=0), r"prompts_per_iteration=0"),
        (lambda c: c.training(loss_reduction="mean"), r"loss_reduction='mean' must be one of"),
        (lambda c: c.training(loss_reduction="seq-mean-token-sum-norm"), r"loss_fixed_length=None\)"),
        (lambda c: c.training(loss_fixed_length=8), r"belongs to 'seq-mean-token-sum-norm'"),
        (lambda c: c.training(corrector="tis"), r"training\(corrector='tis' must be 'none'"),
        (lambda c: c.training(router_replay="r3"), r"training\(router_replay='r3' must be 'none'"),
        (lambda c: c.training(clip_low=-0.1), r"clip_low=-0.1"),
        (lambda c: c.training(clip_high=float("inf")), r"clip_high=inf"),
        (lambda c: c.training(dual_clip=0.5), r"dual_clip=0.5"),
        (lambda c: c.training(kl_kind="k4"), r"kl_kind='k4'"),
        (lambda c: c.training(kl_coefficient=-1.0), r"kl_coefficient=-1.0"),
        (lambda c: c.training(entropy_coefficient=float("nan")), r"entropy_coefficient=nan"),
        (lambda c: c.training(weight_decay=-1.0), r"weight_decay=-1.0"),
        (lambda c: c.training(adam_betas=(0.9, 1.0)), r"adam_betas"),
        (lambda c: c.training(minibatch_size=0), r"minibatch_size=0"),
        (lambda c: c.training(grad_clip=0.0), r"grad_clip=0.0"),
        (lambda c: c.training(grad_clip_by="value"), r"DeepSpeed clips by 'global_norm' only"),
        (lambda c: c.sampling(temperature=0.0), r"temperature=0.0\) is greedy"),
        (lambda c: c.sampling(record_head=4, top_k=3), r"record_head=4"),
        (lambda c: c.vllm(logprobs_mode="raw_logprobs"), r"vllm\(logprobs_mode=...\) is set by"),
        (lambda c: c.vllm(seed=1), r"vllm\(seed=...\) is set by debugging\(seed=...\)"),
        (lambda c: c.language_model(dtype="float16"), r"language_model\(dtype='float16'"),
        (lambda c: c.language_model("rlhf_algos/tiny-mo"), r"Did you mean 'rlhf_algos/tiny-moe'"),
        (lambda c: c.deepspeed(zero_stage=0), r"zero_stage=0\) must be 1, 2 or 3"),
        (lambda c: c.deepspeed(token_budget=0), r"token_budget=0"),
        (lambda c: c.deepspeed(config={"fp16": {}}), r"'fp16': ...}\) is set by language_model"),
        (lambda c: c.env_runners(num_env_runners=0), r"at least one rollout actor"),
        (lambda c: c.evaluation(evaluation_duration_unit="timesteps"), r"use 'episodes'"),
        (lambda c: c.environment("rlhf_algos/Adition-v0"), r"Adition-v0.* is not registered"),
    ],
)
def test_a_wrong_option_is_named(change, message):
    config = base()
    change(config)
    with pytest.raises(Exception, match=message):
        config.validate()


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="unknown_option"):
        base().training(unknown_option=1)
    with pytest.raises(TypeError, match="temprature"):
        base().sampling(temprature=1.0)


def test_no_environment_says_what_to_do():
    with pytest.raises(ValueError, match=r"call environment\('rlhf_algos/Addition-v0'\)"):
        GRPOConfig().validate()


def test_defaults_are_valid_and_survive_a_copy():
    config = base()
    config.validate()
    copy = config.copy()
    assert copy.sampling_settings() == config.sampling_settings()
    assert GRPOConfig().update_from_dict(config.to_dict()).group_size == config.group_size


def test_sampling_options_reach_the_sampler_and_the_trainer():
    config = base().sampling(
        temperature=0.7, top_p=0.9, top_k=5, max_response_tokens=3, stop_token_ids=[9], record_routes=True
    )
    settings = config.sampling_settings()
    assert (settings.temperature, settings.top_p, settings.top_k) == (0.7, 0.9, 5)
    assert (settings.max_response_tokens, settings.stop_token_ids, settings.record_routes) == (3, (9,), True)
    assert config.get_default_rl_module_spec().model_config["temperature"] == 0.7
    greedy = config.sampling_settings(greedy=True)
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, 0)


def test_the_engine_has_the_trainers_dtype_unless_given():
    assert base().language_model(dtype="bfloat16").vllm_engine_args()["dtype"] == "bfloat16"
    config = base().vllm(dtype="float32", max_model_len=64).vllm(max_num_seqs=8)
    assert config.vllm_engine_args() == {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 8}


def test_deepspeed_settings_follow_the_options_and_the_users_own():
    plain = {"zero_stage": 2, "bfloat16": False, "offload_optimizer": False, "grad_clip": None}
    settings = deepspeed_settings(**plain)
    assert settings["zero_optimization"] == {"stage": 2}
    assert settings["gradient_clipping"] == 0.0 and settings["bf16"] == {"enabled": False}
    changed = deepspeed_settings(
        zero_stage=3,
        bfloat16=True,
        offload_optimizer=True,
        grad_clip=0.5,
        num_parameters=1000,
        overrides={"zero_optimization": {"overlap_comm": False, "reduce_bucket_size": 7}, "wall_clock_breakdown": True},
    )
    assert changed["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "overlap_comm": False,
        "reduce_bucket_size": 7,
        "allgather_bucket_size": 1000,
    }
    assert changed["gradient_clipping"] == 0.5 and changed["bf16"] == {"enabled": True}
    assert changed["wall_clock_breakdown"] is True
    with pytest.raises(ValueError, match=r"unknown key 'zero_optimisation'. Did you mean 'zero_optimization'"):
        deepspeed_settings(**plain, overrides={"zero_optimisation": {}})
    with pytest.raises(ValueError, match="contradicts"):
        deepspeed_settings(**plain, overrides={"zero_optimization": {"stage": 1}})
