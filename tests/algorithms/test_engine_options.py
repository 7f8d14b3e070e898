"""Arguments of `vllm(...)`: the engine's own names, and none that would part sampler and trainer."""

import pytest

from rlhf_algos.algorithms import engine_options
from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.engine_arguments import vllm_engine_arguments


def with_arguments(**arguments):
    return GRPOConfig().environment("rlhf_algos/Addition-v0").vllm(**arguments)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("trust_remote_code", r"is set by language_model\(trust_remote_code=...\)"),
        ("worker_cls", r"is refused: it runs code of its own .* language_model\(trust_remote_code=...\) decides"),
        ("worker_extension_cls", "is refused: it runs code of its own"),
        ("scheduler_cls", "is refused: it runs code of its own"),
        ("revision", r"is set by language_model\(path\), for sampler and trainer alike"),
        ("code_revision", r"is set by language_model\(path\)"),
        ("hf_overrides", r"is set by language_model\(path\)"),
        ("hf_config_path", r"is set by language_model\(path\)"),
        ("model_class_overrides", r"is set by language_model\(path\)"),
        ("tokenizer", r"is set by language_model\(path\), whose tokenizer"),
        ("tokenizer_revision", r"is set by language_model\(path\), whose tokenizer"),
        ("spec_method", "is refused: drafted tokens"),
        ("watermark_config", "is refused: a watermark changes what is sampled"),
    ],
)
def test_what_would_part_sampler_and_trainer_is_refused(name, instead):
    with pytest.raises(ValueError, match=rf"^vllm\({name}=...\) {instead}"):
        with_arguments(**{name: "x"}).validate()


def test_a_name_that_the_engine_does_not_have_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"^vllm\(nonsense=...\): the engine has no argument 'nonsense'.$"):
        with_arguments(nonsense=3).validate()
    with pytest.raises(ValueError, match="'max_modl_len'. Did you mean 'max_model_len'?"):
        with_arguments(max_modl_len=3).validate()


def test_how_the_engine_computes_stays_the_users_choice():
    arguments = {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "max_num_seqs": 8,
        "quantization": "fp8",
        "enforce_eager": False,
        "gpu_memory_utilization": 0.5,
        "download_dir": "/somewhere",
        "compilation_config": {},
    }
    config = with_arguments(**arguments)
    config.validate()
    assert config.vllm_args == arguments


def test_every_name_in_the_tables_is_one_of_the_engines():
    """A new version of vLLM may call them otherwise, and they would be refused as unknown only."""
    assert set(engine_options.OWNED) | set(engine_options.REFUSED) <= set(vllm_engine_arguments())
