"""From a file to an algorithm's config: everything unknown or of the wrong type is refused by name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ray.rllib.algorithms.algorithm_config import NotProvided

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.recipes import addition
from rlhf_algos.algorithms.reinforce_sc import ReinforceSC
from rlhf_algos.commands.config.run_config import read_run_config, require_no_grids
from rlhf_algos.commands.config.sections import Argument, arguments_of
from rlhf_algos.commands.errors import ConfigError
from rlhf_algos.engine_arguments import vllm_engine_arguments
from rlhf_algos.runs.values import plain_config
from tests.commands.toy_algorithm import Toy

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/configs/addition_grpo.yaml"


def options_of(config):
    """A config's options, without what differs between objects of one meaning."""
    return plain_config(config.to_dict())


def test_the_example_is_the_recipe():
    run = read_run_config(EXAMPLE)
    recipe = addition(GRPOConfig(), iterations=run.iterations)
    recipe.validate()
    assert options_of(run.build()) == options_of(recipe)


def test_what_is_recorded_is_a_configuration_that_means_the_same(tmp_path):
    """Also after values were set that differ from every default."""
    run = read_run_config(
        EXAMPLE,
        [
            "training.corrector={type: tis, high: 3.0}",
            "training.lr=1e-3",
            "training.grad_clip=null",
            "training.adam_betas=[0.8, 0.99]",
            "reporting.min_time_s_per_iteration=1.5",
            "sampling.top_k=5",
            "mismatch_injection.rounding_bits=4",
            "mismatch_injection.lag=2",
            "language_model.gradient_checkpointing=true",
            "deepspeed.zero_stage=3",
            "deepspeed.config={wall_clock_breakdown: false}",
            "vllm.dtype=bfloat16",
            "env_runners.num_cpus_per_env_runner=0.5",
            "fault_tolerance.env_runner_restore_timeout_s=77.0",
            "debugging.seed=9",
        ],
    )
    config = run.build()
    assert (config.lr, config.trainer_dtype, config.vllm_args["dtype"]) == (1e-3, "float32", "bfloat16")
    recorded = run.recorded(config)
    assert recorded["language_model"] == {
        "path": "rlhf_algos/tiny-moe",
        "dtype": "float32",
        "gradient_checkpointing": True,
        "trust_remote_code": False,
    }
    assert recorded["training"]["clip_low"] == 0.2
    assert recorded["reporting"]["min_time_s_per_iteration"] == 1.5
    assert recorded["env_runners"]["num_cpus_per_env_runner"] == 0.5
    # Decided on the machine that it runs on, so also when it is run again.
    assert recorded["learners"]["num_cpus_per_learner"] is None
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"format": "rlhf_algos.RunFolder", "format_version": 1} | recorded))
    again = read_run_config(file)
    assert options_of(again.build()) == options_of(config)
    assert again.top_level() == run.top_level()


def test_every_declared_option_is_recorded_under_the_name_it_is_set_by():
    run = read_run_config(EXAMPLE)
    for option in GRPOConfig().declared_options().values():
        if not (option.recorded and option.in_files) or option.section == "vllm":
            continue
        config, marker = GRPOConfig(), object()
        setattr(config, option.name, marker)
        assert run.recorded(config)[option.section][option.keyword] is marker, option.shown(marker)


class Undeclared(GRPOConfig):
    """Keeps an argument under its own name, and one where nobody would look."""

    def training(self, *, my_weight=NotProvided, my_other=NotProvided, **kwargs):
        super().training(**kwargs)
        self._hidden = my_other
        return self._set(my_weight=my_weight)


class Toyish(GRPO):
    @classmethod
    def get_default_config(cls):
        return Undeclared(algo_class=cls)


def test_the_type_of_an_argument_without_a_declaration_is_that_of_its_annotation():
    """RLlib calls fractions of a CPU whole numbers."""
    arguments = arguments_of(GRPOConfig(), "env_runners")
    resources, cpus = arguments["custom_resources_per_env_runner"], Argument(int, of_rllib=True)
    assert resources.of_rllib and resources.fits({"big": 1}) and not resources.fits(3)
    assert cpus.fits(0.5) and not cpus.fits("a") and not Argument(int, of_rllib=False).fits(0.5)


def test_an_argument_without_a_declaration_is_recorded_or_an_error():
    run = read_run_config(EXAMPLE, ["algorithm=tests.commands.test_run_config.Toyish", "training.my_weight=0.5"])
    with pytest.raises(
        ConfigError, match=r"Undeclared.training\(my_other=...\): its value can't be recorded. Declare it"
    ):
        run.recorded(run.new_config())
    run = replace(run, sections=run.sections | {"training": run.sections["training"] | {"my_other": 1}})
    recorded = run.recorded(run.new_config())["training"]
    assert (recorded["my_weight"], recorded["my_other"]) == (0.5, 1)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("grpo", GRPO),
        ("reinforce_sc", ReinforceSC),
        ("tests.commands.toy_algorithm.Toy", Toy),
        ("rlhf_algos.algorithms.grpo.GRPOConfig", GRPO),
    ],
)
def test_algorithms_by_name_and_path(name, cls):
    run = read_run_config(EXAMPLE, [f"algorithm={name}"])
    assert run.algorithm_class() is cls
    assert run.build().algo_class is cls


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.grop_size=4", "--set: training.grop_size is no known key. Did you mean training.group_size?"),
        ("trainin.lr=1", "--set: trainin is no known section or key. Did you mean training?"),
        ("iteratons=3", "--set: iteratons is no known section or key. Did you mean iterations?"),
        ("vllm.max_modle_len=32", "Did you mean vllm.max_model_len?"),
        ("debugging.zzz=32", "debugging.zzz is no known key. There are"),
        ("evaluation.evaluation_config.env_confg={}", "Did you mean evaluation.evaluation_config.env_config?"),
        ("sampling.repetition_penalty=2", "is refused: it changes a token's probability by what was said before"),
        ("training.score_centering=true", "Use ReinforceSCConfig"),
        ("training.group_size=4.5", r"training.group_size must be a whole number, got 4.5 \(float\)"),
        ("training.group_size=true", r"training.group_size must be a whole number, got True \(bool\)"),
        ("training.lr=fast", "training.lr must be a number or a list, got 'fast'"),
        ("training.normalize_std=1", "training.normalize_std must be true or false, got 1"),
        ("training.kl_kind=k9", "training.kl_kind must be one of k1, k2, k3, got 'k9'"),
        (
            "env_runners.custom_resources_per_env_runner=3",
            r"env_runners.custom_resources_per_env_runner must be keys and values or null, got 3 \(int\)",
        ),
        ("learners.num_gpus_per_learner=many", "learners.num_gpus_per_learner must be a number"),
        ("sampling.stop_token_ids=[a]", "sampling.stop_token_ids must be a list, got"),
        ("environment=3", "environment must have keys, such as `key: value`; got 3"),
        ("iterations=0", "iterations must be at least 1, got 0"),
        ("iterations=many", "iterations must be a whole number, got 'many'"),
        ("evaluate_every=-1", "evaluate_every must be at least 0"),
        ("name=a/b", "name names a folder"),
        ("algorithm=grop", "no algorithm is called 'grop'. Did you mean grpo?"),
        ("algorithm=nowhere.Thing", r"nowhere.Thing can't be imported \(No module named 'nowhere'\)"),
        ("algorithm=pathlib.Path", "pathlib.Path is neither a LanguageModelAlgorithm nor a config of one"),
        ("sampling.top_p=2.0", r"--set: sampling.top_p: sampling\(top_p=2.0\) must be a finite number above 0"),
        ("training.lr=-1e-3", r"--set: training.lr: training\(lr=-0.001\) must be a finite number of at least 0"),
        ("sampling.temperature=.inf", r"--set: sampling.temperature: sampling\(temperature=inf\) must be a finite"),
        ("language_model.path=./nowhere", r"language_model\('.*/nowhere'\): there is no such folder"),
        (
            "training.train_batch_size_per_learner=128",
            r"addition_grpo.yaml: training\(train_batch_size_per_learner=128\)",
        ),
        (
            "env_runners.explore=false",
            r"addition_grpo.yaml: env_runners\(explore=False\) has no effect here: .*sampling",
        ),
        ("environment.env=rlhf_algos/Additon-v0", "addition_grpo.yaml: UnregisteredEnv: .*Did you mean: `Addition`"),
        ("seeds=[0, 1]", "seeds belongs to `rlhf-algos sweep`"),
        ("training.lr={grid: [1, 2]}", "training.lr is a grid; only `rlhf-algos sweep` goes through several values"),
        ("lr={grid: [1, 2]}", "lr is no known section or key"),
    ],
)
def test_a_mistake_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        run = read_run_config(EXAMPLE, [override])
        require_no_grids(run)
        run.build()


def test_what_is_missing_is_named(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("algorithm: grpo\n")
    with pytest.raises(ConfigError, match="run.yaml: iterations is missing; for example `iterations: 40`"):
        read_run_config(file)
    assert read_run_config(file, iterations=2).iterations == 2
    assert read_run_config(file, iterations=2).name == "run"


def test_the_names_of_vllms_engine_arguments_are_those_of_its_class():
    """They are read from its source, so that a typing error is found without importing it."""
    import dataclasses

    from vllm import EngineArgs

    names = [field.name for field in dataclasses.fields(EngineArgs)]
    assert vllm_engine_arguments() == [name for name in names if not name.startswith("_")]
