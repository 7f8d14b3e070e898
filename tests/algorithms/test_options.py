"""Types and ranges of options: one declaration each, the same answer however an option is set."""

import inspect
import json
import re

import numpy as np
import pytest
from ray.rllib.algorithms.algorithm import Algorithm

from rlhf_algos.algorithms import ALGORITHMS, algorithm_class
from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.options import (
    Option,
    flag,
    number,
    number_or_schedule,
    one_of,
    optional,
    sequence,
    whole,
)
from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.algorithms.reset import given_config
from rlhf_algos.commands.config.run_config import read_run_config
from rlhf_algos.commands.config.sections import arguments_of, declared_in
from rlhf_algos.envs import PromptEnv

NAN, INF = float("nan"), float("inf")


def base(config=GRPOConfig):
    return config().environment("rlhf_algos/Addition-v0")


# For every kind of value: what it takes, with what that becomes, and what it refuses.
KINDS = {
    "whole": (whole(at_least=2), {3: 3, np.int64(3): 3, np.uint8(2): 2}, [1, 2.0, np.float64(2.0), True, "2", None]),
    "number": (
        number(at_least=0, below=1),
        {0: 0.0, 0.5: 0.5, np.float32(0.5): 0.5, np.int64(0): 0.0},
        [-0.1, 1, 1.0, NAN, INF, np.float64(NAN), True, np.bool_(False), "0.5", None, [0.5]],
    ),
    "flag": (flag(), {True: True, np.bool_(False): False}, [2, 0.5, "true", None]),
    "choice": (one_of("stop", "leave_out"), {"stop": "stop", np.str_("stop"): "stop"}, ["Stop", 0, None]),
    "optional": (optional(whole(1, 3)), {None: None, np.int8(3): 3}, [0, 4, 1.0, "None"]),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_a_kind_takes_and_what_it_refuses(name):
    kind, taken, refused = KINDS[name]
    option = Option("training", "x", kind)
    for given, plain in taken.items():
        found = option.checked(given)
        assert found == plain
        assert type(found) is type(plain), given
    for given in refused:
        with pytest.raises(ValueError, match=r"training\(x=.*\) must be "):
            option.checked(given)


def test_lists_and_schedules():
    betas = Option("training", "x", sequence(number(at_least=0, below=1), length=2))
    assert betas.checked(np.array([0.5, 0.25])) == [0.5, 0.25]
    assert betas.checked((np.float32(0.5), 0)) == (0.5, 0.0)
    for wrong in ([0.5], [0.5, 1.0], [0.5, NAN], "ab", {0.5: 0.1}):
        with pytest.raises(ValueError, match="2 values, each a finite number of at least 0 and below 1"):
            betas.checked(wrong)
    rate = Option("training", "lr", number_or_schedule(number(at_least=0)))
    assert rate.checked(((0, 1e-3), (np.int64(100), 0))) == [[0, 1e-3], [100, 0.0]]
    for wrong in ([], [[0, 1e-3]], [[1, 1e-3], [5, 0]], [[0, 1e-3], [0, 0]], [[0, -1e-3], [5, 0]], [[0, NAN], [5, 0]]):
        with pytest.raises(ValueError, match=r"training\(lr=.*or a schedule \[\[0, value\], \[step, value\]"):
            rate.checked(wrong)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("training", "minibatch_size", 16.0),
        ("training", "group_size", 8.0),
        ("training", "lr", -1e-3),
        ("training", "lr", NAN),
        ("training", "lr", [[0, 1e-3], [100, -1e-3]]),
        ("training", "grad_clip", True),
        ("training", "num_epochs", 1.5),
        ("training", "kl_coefficient", "0.1"),
        ("training", "clip_low", 1.5),
        ("training", "normalize_std", 1),
        ("training", "adam_betas", (0.9,)),
        ("sampling", "max_response_tokens", 8.5),
        ("sampling", "temperature", INF),
        ("sampling", "temperature", True),
        ("sampling", "temperature", "0.7"),
        ("sampling", "stop_token_ids", [1.5]),
        ("sampling", "stop_token_ids", 3),
        ("mismatch_injection", "lag", 0.5),
        ("mismatch_injection", "weight_noise", NAN),
        ("deepspeed", "token_budget", "8192"),
        ("env_runners", "num_env_runners", 1.0),
        ("env_runners", "num_cpus_per_env_runner", -1),
        ("env_runners", "num_gpus_per_env_runner", INF),
        ("env_runners", "num_threads_per_env_runner", 0),
        ("learners", "num_learners", True),
        ("learners", "num_cpus_per_learner", "many"),
        ("learners", "num_threads_per_learner", 1.5),
        ("resources", "num_cpus_for_main_process", 0),
        ("evaluation", "evaluation_duration", "auto"),
        ("evaluation", "evaluation_duration", 8.0),
        ("evaluation", "evaluation_interval", 0.5),
        ("evaluation", "evaluation_num_env_runners", -1),
        ("debugging", "seed", -1),
        ("debugging", "seed", 1.0),
        ("debugging", "save_batches", 7),
        ("fault_tolerance", "env_runner_restore_timeout_s", NAN),
        ("reporting", "min_sample_timesteps_per_iteration", -5),
    ],
)
def test_nonsense_is_refused_by_name_before_anything_starts(section, name, value):
    config = base()
    getattr(config, section)(**{name: value})
    with pytest.raises(ValueError, match=rf"^{section}\({name}=.*\) must be "):
        config.validate()


def test_the_same_for_reinforce_sc():
    for name, value in {"tail_floor": 1.0, "head_top_k": 4.0, "score_centering": 1, "entropy_coefficient": NAN}.items():
        with pytest.raises(ValueError, match=rf"^training\({name}=.*\) must be "):
            base(ReinforceSCConfig).training(**{name: value}).validate()


def test_numbers_of_numpy_become_pythons():
    config = base().training(
        group_size=np.int64(8), prompts_per_iteration=np.int64(8), lr=np.float64(1e-3), adam_betas=np.array([0.5, 0.75])
    )
    config.sampling(temperature=np.float32(0.5), record_routes=np.bool_(True), stop_token_ids=[np.int32(5)])
    config.evaluation(
        evaluation_duration=np.int64(8),
        evaluation_config={"max_response_tokens": np.int64(3)},
    )
    config.validate()
    found = {
        "group_size": 8,
        "prompts_per_iteration": 8,
        "lr": 1e-3,
        "temperature": 0.5,
        "record_routes": True,
        "evaluation_duration": 8,
    }
    for name, value in found.items():
        assert getattr(config, name) == value
        assert type(getattr(config, name)) is type(value), name
    assert [type(item) for item in config.stop_token_ids] == [int]
    evaluation = config.get_evaluation_config_object()
    evaluation.validate()
    assert (evaluation.max_response_tokens, type(evaluation.max_response_tokens)) == (3, int)
    assert evaluation.sampling_settings().max_response_tokens == 3


class Indexed(PromptEnv):
    """Its problems are an array, which it indexes with an array."""

    def __init__(self, numbers, scale, nested=None, split="train"):
        super().__init__(split=split)
        self.numbers, self.scale = numbers[np.array([1, 0])], scale

    def prompt(self, rng):
        return f"{self.numbers[0]}="

    def reward(self, response):
        return float(self.scale)


def test_what_an_environment_is_given_stays_as_it_is():
    given = {"numbers": np.arange(3), "scale": np.float32(1), "nested": {"rows": (np.int64(1), [np.arange(2)])}}
    own = {"numbers": np.arange(5), "scale": np.float64(2)}
    config = GRPOConfig().environment(Indexed, env_config=given).evaluation(evaluation_config={"env_config": own})
    config.validate()
    evaluation = config.copy(copy_frozen=False).get_evaluation_config_object()
    evaluation.validate()
    for name, value in given.items():
        assert name == "nested" or config.env_config[name] is value
    assert config.env_config["nested"]["rows"] is given["nested"]["rows"]
    for name, value in own.items():
        assert config.evaluation_config["env_config"][name] is value
        assert evaluation.env_config[name] is value
    assert config.env_creator().unwrapped.numbers.tolist() == [1, 0]


def test_a_copy_has_its_own_dicts_and_shares_the_data_in_them():
    rows = [{"question": "1+1="}]
    config = base().environment(env_config={"data": {"rows": rows, "part": "a"}})
    config.evaluation(evaluation_config={"env_config": {"data": {"rows": rows}}})
    config.freeze()
    copied = config.copy(copy_frozen=False)
    copied.environment(env_config={"data": {"part": "b"}, "digits": 1})
    copied.evaluation_config["env_config"]["data"]["part"] = "c"
    copied.stop_token_ids = [3]
    assert config.env_config == {"data": {"rows": rows, "part": "a"}} and config.stop_token_ids == ()
    assert config.evaluation_config == {"env_config": {"data": {"rows": rows}}}
    assert copied.env_config == {"data": {"rows": rows, "part": "b"}, "digits": 1}
    assert copied.env_config["data"]["rows"] is copied.evaluation_config["env_config"]["data"]["rows"] is rows
    with pytest.raises(AttributeError, match="frozen"):
        config.copy().lr = 1.0


class Untouchable(list):
    """Data that nobody may go through on the way to the environment."""

    def __iter__(self):
        raise AssertionError("gone through")

    __deepcopy__ = __reduce_ex__ = __repr__ = __len__ = __iter__


def test_validation_does_not_go_through_an_environments_data():
    config = base().environment(env_config={"rows": Untouchable()})
    config.evaluation(evaluation_config={"env_config": {"more": Untouchable()}})
    config.env = lambda env_config: None
    config.validate()
    evaluation = config.get_evaluation_config_object()
    evaluation.validate()
    assert evaluation.env_config["rows"] is config.env_config["rows"]


def test_values_of_an_evaluation_are_checked_too():
    for name, value in {"temperature": INF, "max_response_tokens": 8.5, "top_p": 2.0, "seed": 1.5}.items():
        config = base().evaluation(evaluation_config={name: value})
        with pytest.raises(ValueError, match=rf"^evaluation\(evaluation_config={{'{name}': .*}}\) must be "):
            config.validate()


@pytest.mark.parametrize("config", [GRPOConfig, ReinforceSCConfig])
def test_every_declared_default_is_what_a_new_config_has_and_is_valid(config):
    new = config()
    for name, option in config.declared_options().items():
        assert getattr(new, name) == option.default, name
        option.checked(option.default)
        # Two configs share no value that can be changed.
        if isinstance(option.default, dict | list):
            assert getattr(new, name) is not option.default


def argument_texts(config, section):
    """What the docstrings of a section's methods, those of base classes included, say of each argument."""
    found = {}
    for cls in reversed(config.__mro__):
        method = vars(cls).get(section)
        if method is None or cls.__module__.startswith("ray."):
            continue
        # Arguments stand 4 deeper than their heading, and what continues one deeper than it.
        _, _, arguments = inspect.getdoc(method).partition("Args:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_docstrings_and_declarations_agree(name):
    """Every option has a meaning, and the section's text of the argument begins with it."""
    config = type(algorithm_class(name).get_default_config())
    checked = set()
    for option in config.declared_options().values():
        assert option.meaning.strip() and option.meaning[-1] not in ".,:;", option.name
        texts = argument_texts(config, option.section)
        if option.keyword in texts:
            assert texts[option.keyword].startswith(option.meaning), f"{option.section}({option.keyword})"
            checked.add(option.keyword)
    ours = {option.keyword for option in config.declared_options().values() if not option.of_rllib}
    # Said under `kwargs` or `engine_args`: RLlib has the argument, or vLLM the names.
    assert ours - checked == {"vllm_args", "num_cpus_per_env_runner", "num_cpus_per_learner"}


def test_what_a_section_takes_of_ours_is_declared():
    """An argument of a method of ours without a declaration would be checked by nobody."""
    for name in ALGORITHMS:
        config = algorithm_class(name).get_default_config()
        for section in dict.fromkeys(option.section for option in config.declared_options().values()):
            ours = {name for name, argument in arguments_of(config, section).items() if not argument.of_rllib}
            assert ours - {"input_"} <= set(declared_in(config, section)), section


def test_options_that_a_subclass_declares():
    class Mine(GRPOConfig):
        OPTIONS = (
            Option("training", "my_weight", number(at_least=0), 0.5),
            Option("training", "clip_low", number(), 0.1),
        )

    config = Mine().environment("rlhf_algos/Addition-v0")
    assert (config.my_weight, config.clip_low, config.clip_high) == (0.5, 0.1, 0.2)
    config.my_weight = -1
    with pytest.raises(ValueError, match=r"^training\(my_weight=-1\) must be a finite number of at least 0"):
        config.validate()


class Scaled(GRPOConfig):
    """A configuration with an option of its own, as docs/options.md shows it."""

    OPTIONS = (Option("training", "my_scale", number(at_least=0), 0.5),)


class ScaledGRPO(GRPO):
    """What Tune needs for it."""

    @classmethod
    def get_default_config(cls):
        return Scaled(algo_class=cls)


def test_an_algorithm_is_set_up_with_options_of_a_subclass(monkeypatch):
    """As far as to what RLlib starts processes with, and the resources that are counted before."""
    config = Scaled().environment("rlhf_algos/Addition-v0").env_runners(num_env_runners=3).learners(num_learners=0)
    config.my_scale = 0.25
    counted, found = [], []
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: None)
    for name in (
        "rlhf_algos.algorithms.algorithm.check_resources",
        "rlhf_algos.driver.placement.check_resources",
    ):
        monkeypatch.setattr(name, counted.append)
    monkeypatch.setattr(Algorithm, "setup", lambda self, config: found.append(self.config))
    algorithm = GRPO(config=config)
    algorithm.abandon()
    assert [type(config) for config in found] == [Scaled] and found[0].my_scale == 0.25
    # Once more where Ray runs and knows its machines.
    assert {len(bundles) for bundles in counted} == {4}
    assert len(GRPO.default_resource_request(config).bundles) == 4
    config.my_scale = -1
    with pytest.raises(ValueError, match=r"^training\(my_scale=-1\) must be"):
        GRPO.default_resource_request(config)


def test_tunes_dict_needs_an_algorithm_that_names_the_class():
    space = Scaled().environment("rlhf_algos/Addition-v0").to_dict() | {"my_scale": 0.25}
    assert given_config(ScaledGRPO, space).my_scale == 0.25
    assert len(ScaledGRPO.default_resource_request(space).bundles) == 3
    with pytest.raises(ValueError, match=r"no option 'my_scale'.* subclass of the algorithm whose get_default_config"):
        GRPO.default_resource_request(space)


@pytest.mark.parametrize("given", ["auto", None, 0.5, 2])
def test_cpus_of_a_learner_in_python_and_in_a_file_are_the_same(given, tmp_path):
    (tmp_path / "run.json").write_text(
        json.dumps(
            {
                "algorithm": "grpo",
                "iterations": 1,
                "environment": {"env": "rlhf_algos/Addition-v0"},
                "learners": {"num_cpus_per_learner": given},
            }
        )
    )
    in_python = base().learners(num_cpus_per_learner=given)
    in_python.validate()
    in_a_file = read_run_config(tmp_path / "run.json").build()
    assert (
        in_a_file.num_cpus_per_learner
        == in_python.num_cpus_per_learner
        == (given if isinstance(given, int | float) else 0.4)
    )


def test_grids_may_stand_anywhere_until_the_config_is_validated():
    from ray import tune

    config = base().training(lr=tune.grid_search([1e-3, 1e-4]), group_size=tune.grid_search([2, 4]))
    config.env_runners(num_env_runners=tune.grid_search([1, 2]))
    config.language_model(tune.grid_search(["rlhf_algos/tiny-moe"])).debugging(seed=tune.grid_search([0, 1]))
    space = config.to_dict()
    assert space["lr"] == {"grid_search": [1e-3, 1e-4]}
    trial = space | {"lr": 1e-3, "group_size": 2, "num_env_runners": 2, "seed": 1}
    trial["language_model_path"] = "rlhf_algos/tiny-moe"
    GRPOConfig().update_from_dict(trial).validate()
    with pytest.raises(ValueError, match=r"training\(group_size={'grid_search': \[2, 4\]}\) must be a whole number"):
        GRPOConfig().update_from_dict(trial | {"group_size": space["group_size"]}).validate()
