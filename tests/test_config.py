"""Every option is checked when the algorithm is built, by name, and every option changes what the parts get."""

import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.corrections import Corrector, IcePop
from rlhf_algos.learner.deepspeed_settings import deepspeed_settings


def base() -> GRPOConfig:
    return GRPOConfig().environment("rlhf_algos/Addition-v0")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.training(group_size=1), r"training\(group_size=1\) must be a whole number of at least 2"),
        (lambda c: c.training(prompts_per_iteration=0), r"prompts_per_iteration=0"),
        (
            lambda c: c.training(loss_reduction="mean"),
            r"training\(loss_reduction='mean'\) must be 'token-mean', 'seq-mean-token-mean'",
        ),
        (lambda c: c.training(loss_reduction="seq-mean-token-sum-norm"), r"loss_fixed_length=None\)"),
        (lambda c: c.training(loss_fixed_length=8), r"belongs to 'seq-mean-token-sum-norm'"),
        (lambda c: c.training(unscorable_responses="zero"), r"unscorable_responses='zero'\) must be 'stop' or"),
        (lambda c: c.training(corrector="tos"), r"'tos'.*[Dd]id you mean.*'tis'"),
        (lambda c: c.training(corrector={"type": "tis", "hihg": 3.0}), r"hihg"),
        (lambda c: c.training(corrector={"type": "tis", "low": 3.0}), r"TIS.*low=3.0"),
        (lambda c: c.mismatch_injection(weight_noise=-0.1), r"weight_noise=-0.1"),
        (
            lambda c: c.mismatch_injection(rounding_bits=1),
            r"rounding_bits=1\) must be None or a whole number from 2 to 8",
        ),
        (lambda c: c.mismatch_injection(lag=-1), r"lag=-1"),
        (lambda c: c.vllm(logits_processors=[]), r"vllm\(logits_processors=...\) is refused: a logits processor"),
        (lambda c: c.vllm(speculative_config={}), r"vllm\(speculative_config=...\) is refused"),
        (lambda c: c.vllm(structured_outputs_config={}), r"vllm\(structured_outputs_config=...\) is refused"),
        (lambda c: c.vllm(override_generation_config={}), r"vllm\(override_generation_config=...\) is refused"),
        (lambda c: c.training(router_replay="r4"), r"router_replay='r4' is unknown\. Names: none, r2, r3\."),
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
        (lambda c: c.sampling(temperature=-1.0), r"sampling\(temperature=-1.0\) must be a finite number of at least 0"),
        (lambda c: c.sampling(top_p=0.0), r"sampling\(top_p=0.0\) must be a finite number above 0 and at most 1"),
        (lambda c: c.sampling(top_k=-1), r"sampling\(top_k=-1\) must be a whole number of at least 0: 0 is off"),
        (lambda c: c.sampling(max_response_tokens=0), r"sampling\(max_response_tokens=0\)"),
        (lambda c: c.sampling(record_head=-2), r"sampling\(record_head=-2\)"),
        (lambda c: c.sampling(record_head=4, top_k=3), r"record_head=4"),
        (lambda c: c.vllm(logprobs_mode="raw_logprobs"), r"vllm\(logprobs_mode=...\) is set by"),
        (lambda c: c.vllm(seed=1), r"vllm\(seed=...\) is set by debugging\(seed=...\)"),
        (lambda c: c.language_model(dtype="float16"), r"language_model\(dtype='float16'"),
        (lambda c: c.language_model("rlhf_algos/tiny-mo"), r"Did you mean 'rlhf_algos/tiny-moe'"),
        (lambda c: c.deepspeed(zero_stage=0), r"zero_stage=0\) must be a whole number from 1 to 3"),
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


def centered() -> ReinforceSCConfig:
    return ReinforceSCConfig().environment("rlhf_algos/Addition-v0")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.training(corrector="sequence_tis"), r"corrector='sequence_tis'.*no elementwise function"),
        (lambda c: c.training(normalize_std=True), r"normalize_std=True, score_centering=True"),
        (lambda c: c.training(loss_reduction="seq-mean-token-mean"), r"'seq-mean-token-mean', score_centering=True"),
        (lambda c: c.training(head_top_k=0), r"head_top_k=0"),
        (lambda c: c.training(tail_floor=0.0), r"tail_floor=0.0"),
        (lambda c: c.training(entropy_coefficient=-1.0), r"entropy_coefficient=-1.0"),
        (lambda c: c.sampling(record_head=4), r"record_head=4\) and training\(head_top_k=128\)"),
        (lambda c: c.sampling(temperature=0.0), r"temperature=0.0\) is greedy"),
        (lambda c: c.training(corrector=Peaky()), r"Peaky: the ratio .* when the ratios are sliced"),
    ],
)
def test_centering_refuses_what_it_does_not_hold_for(change, message):
    config = centered()
    change(config)
    with pytest.raises(Exception, match=message):
        config.validate()


class Peaky(Corrector):
    """Claims to be elementwise, but divides by the batch's mean."""

    def weight(self, ratio):
        return ratio.detach() / ratio.detach().mean()


@pytest.mark.parametrize(
    "options",
    [
        {"corrector": "sequence_tis"},
        {"normalize_std": True},
        {"loss_reduction": "seq-mean-token-mean"},
    ],
)
def test_without_centering_the_same_options_are_fine(options):
    centered().training(score_centering=False, **options).validate()


@pytest.mark.parametrize("name", ["clip_low", "clip_high", "dual_clip"])
def test_bounds_of_ppo_have_no_meaning_for_reinforce(name):
    with pytest.raises(ValueError, match=rf"{name}=0.3\): ReinforceSC has no clipped surrogate"):
        centered().training(**{name: 0.3})


def test_centering_has_no_meaning_for_ppo_clip():
    with pytest.raises(ValueError, match=r"score_centering=True\): centering is derived for the REINFORCE loss"):
        base().training(score_centering=True)


@pytest.mark.parametrize(
    "name",
    [
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_p",
        "logit_bias",
        "bad_words",
        "allowed_token_ids",
        "structured_outputs",
        "min_tokens",
        "logits_processors",
    ],
)
def test_sampling_options_that_bias_the_record_are_refused_with_the_reason(name):
    with pytest.raises(ValueError, match=rf"sampling\({name}=1\) is refused: .*not sampled from"):
        centered().sampling(**{name: 1})


def test_centering_records_a_head_only_where_it_is_needed():
    assert centered().sampling_settings().record_head == 128
    assert centered().training(head_top_k=7).sampling_settings().record_head == 7
    assert centered().training(score_centering=False).sampling_settings().record_head == 0
    assert centered().sampling(top_p=0.9).sampling_settings().record_head == 0
    assert centered().sampling_settings().greedy().record_head == 0
    config = centered()
    config.validate()
    assert config.get_evaluation_config_object().sampling_settings().record_head == 0


@pytest.mark.parametrize(
    "corrector",
    [
        "none",
        "is",
        "tis",
        "icepop",
        {"type": "tis", "high": 3.0},
        IcePop(0.4, 3.0),
        {"type": "tests.corrections.test_registry.Power", "exponent": 0.5},
    ],
)
@pytest.mark.parametrize("config", [base, centered])
def test_every_way_to_name_a_corrector(config, corrector):
    config().training(corrector=corrector).validate()


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
    greedy = config.sampling_settings().greedy()
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


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda c: c.training(grop_size=8),
            r"GRPOConfig.training\(\) has no argument 'grop_size'. Did you mean 'group_size'",
        ),
        (lambda c: c.training(kl_coeff=0.1), r"'kl_coeff'. Did you mean 'kl_coefficient'"),
        (lambda c: c.training(gama=0.5), r"'gama'. Did you mean 'gamma'"),
        (
            lambda c: c.sampling(temprature=1.0),
            r"sampling\(\) has no argument 'temprature'. Did you mean 'temperature'",
        ),
    ],
)
def test_a_misspelt_argument_says_the_nearest(change, message):
    with pytest.raises(TypeError, match=message):
        change(base())
