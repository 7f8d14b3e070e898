"""Everything that an evaluation may set arrives where it acts, however the configuration came about."""

import json
from unittest.mock import call, patch

import gymnasium
import pytest
from gymnasium.error import UnregisteredEnv
from ray import cloudpickle

from rlhf_algos.algorithms.evaluation_settings import EVALUATION_KEYS
from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.reset import as_config, evaluation_config_of
from rlhf_algos.commands.config.config_file import ConfigFile
from rlhf_algos.commands.config.run_config import RunConfig
from rlhf_algos.driver.batch_metrics import evaluation_metrics
from rlhf_algos.driver.held_out import is_held_out
from rlhf_algos.envs import PromptEnv, RewardError
from rlhf_algos.envs.addition import Addition, addition_key
from rlhf_algos.envs.splits import split_of
from rlhf_algos.rollout.groups import split_facts
from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner
from rlhf_algos.weight_sync.mismatch_injection import NO_INJECTION
from tests.fake_engine import ZERO, FakeEngine, fake_runner, prompts_of

ONE = ZERO + 1


class Other(PromptEnv):
    """Another task, whose problems can be told from sums."""

    def prompt(self, rng):
        return f"q{rng.integers(0, 9999)}="

    def reward(self, response):
        return 0.0


def training_config(**evaluation):
    config = (
        GRPOConfig()
        .environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
        .sampling(max_response_tokens=6)
        .training(prompts_per_iteration=2, group_size=2)
        .debugging(seed=0)
    )
    return config.evaluation(evaluation_config=evaluation) if evaluation else config


def played(runner, indices=range(200), *, greedy=False):
    """Prompts as text, the requests made for them, and the batch."""
    batch, too_long = runner.sample_evaluation(indices, greedy=greedy, weight_version=0)
    requests = runner.engine.requests[-len(indices) :]
    assert not too_long
    return prompts_of(requests), requests, batch


def splits_of(texts):
    """The split that each sum belongs to, by the rule that held it out."""
    sums = [text.removesuffix("=").split("+") for text in texts]
    return {split_of(addition_key(int(a), int(b)), Addition.heldout_fraction) for a, b in sums}


# ---- one check per key: what is played when the key is set ------------------------------------------------------


def plays_other_environment(runner):
    texts, _, batch = played(runner, range(20))
    assert all(text.startswith("q") for text in texts)
    assert "Other" in batch.settings.environment


def plays_three_digits(runner):
    texts, _, _ = played(runner, range(20))
    assert {len(part) for text in texts for part in text.removesuffix("=").split("+")} == {3}


def plays_the_asked_split(runner):
    texts, _, batch = played(runner)
    assert splits_of(texts) == {"train", "heldout"}
    assert batch.settings.split == "all"


def plays_heldout_problems(runner):
    texts, _, batch = played(runner)
    assert len(set(texts)) == 200
    assert splits_of(texts) == {"heldout"}
    assert batch.settings.split == "heldout"


def samples_at_half_temperature(runner):
    _, requests, batch = played(runner, range(3))
    assert {request.temperature for request in requests} == {0.5}
    assert batch.settings.temperature == 0.5
    _, requests, _ = played(runner, range(3), greedy=True)
    assert {request.temperature for request in requests} == {0.0}


def samples_with_top_p(runner):
    _, requests, batch = played(runner, range(3))
    assert {request.top_p for request in requests} == {0.25}
    assert batch.settings.top_p == 0.25


def samples_with_top_k(runner):
    _, requests, batch = played(runner, range(3))
    assert {request.top_k for request in requests} == {3}
    assert batch.settings.top_k == 3


def answers_with_two_tokens_at_most(runner):
    for greedy in (False, True):
        _, requests, batch = played(runner, range(3), greedy=greedy)
        assert {request.max_tokens for request in requests} == {2}
        assert batch.response_lengths.max() <= 2


def ends_at_its_own_stop_id(runner):
    for greedy in (False, True):
        _, requests, batch = played(runner, range(3), greedy=greedy)
        assert {request.stop_token_ids for request in requests} == {(1, 2, ONE)}
        assert (batch.finish_reasons == 0).all()
    # The id that ended the response is no part of the text that is scored.
    runner.engine.answer = lambda request: [ONE]
    with patch.object(Addition, "reward", return_value=0.0) as reward:
        played(runner, range(3))
    assert reward.call_args_list == [call("")] * 3


def has_noise_of_its_own(runner):
    _, requests, _ = played(runner, range(3))
    assert [request.seed for request in requests] != SEEDS_OF_RUN


def leaves_out_what_cannot_be_scored(runner):
    with patch.object(Addition, "reward", side_effect=RuntimeError("nobody can say")):
        _, _, batch = played(runner, range(3))
    assert not batch.scored.any()


SEEDS_OF_RUN = [request.seed for request in played(fake_runner(training_config()), range(3))[1]]

CHECKS = {
    "env": (Other, plays_other_environment),
    "env_config": ({"digits": 3}, plays_three_digits),
    "env_config.split": ({"split": "all"}, plays_the_asked_split),
    "no split": ({}, plays_heldout_problems),
    "temperature": (0.5, samples_at_half_temperature),
    "top_p": (0.25, samples_with_top_p),
    "top_k": (3, samples_with_top_k),
    "max_response_tokens": (2, answers_with_two_tokens_at_most),
    "stop_token_ids": ([ONE], ends_at_its_own_stop_id),
    "seed": (7, has_noise_of_its_own),
    "unscorable_responses": ("leave_out", leaves_out_what_cannot_be_scored),
}


def key_of(case):
    return "env_config" if case == "no split" else case.split(".")[0]


def given(case):
    return {key_of(case): CHECKS[case][0]}


def from_python(case):
    return training_config(**given(case))


def from_a_file(case, **sections):
    evaluation = given(case)
    if case == "env":
        evaluation = {"env": "tests.algorithms.test_evaluation_settings:Other-v0"}
        register_other()
    content = {
        "environment": {"env": "rlhf_algos/Addition-v0", "env_config": {"digits": 2}},
        "sampling": {"max_response_tokens": 6},
        "evaluation": {"evaluation_config": evaluation},
        "debugging": {"seed": 0},
        **sections,
    }
    return RunConfig("grpo", "run", 1, 1, content, ConfigFile("run.yaml", content))


def register_other():
    import gymnasium

    if "Other-v0" not in gymnasium.registry:
        gymnasium.register("Other-v0", entry_point=Other)


def from_train(case):
    return from_a_file(case).build()


def from_sweep(case):
    """A trial of Tune gets the configuration as a dict."""
    return as_config(GRPOConfig(), from_a_file(case).new_config().to_dict())


SOURCES = {"python": from_python, "train": from_train, "sweep": from_sweep}


def rollout_actor(config):
    config = as_config(GRPOConfig(), config)
    return fake_runner(config)


def evaluation_actor(config):
    evaluation = as_config(GRPOConfig(), config).get_evaluation_config_object()
    evaluation.validate()
    evaluation.freeze()
    return fake_runner(evaluation)


ACTORS = {"rollout actors": rollout_actor, "evaluation actors": evaluation_actor}


@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", CHECKS)
def test_the_key_arrives(case, source, actor):
    CHECKS[case][1](ACTORS[actor](SOURCES[source](case)))


@pytest.mark.parametrize("actor", ACTORS)
@pytest.mark.parametrize("case", CHECKS)
def test_a_key_that_is_ignored_is_noticed(case, actor, monkeypatch):
    """One planted fault per key: the evaluation gets the value of training."""
    complete = GRPOConfig.get_evaluation_config_object

    def ignoring(self):
        evaluation = complete(self)
        if evaluation is not None:
            setattr(evaluation, key_of(case), getattr(self, key_of(case)))
        return evaluation

    monkeypatch.setattr(GRPOConfig, "get_evaluation_config_object", ignoring)
    with pytest.raises(RewardError if case == "unscorable_responses" else AssertionError):
        CHECKS[case][1](ACTORS[actor](from_python(case)))


def test_every_key_has_a_check():
    assert {key_of(case) for case in CHECKS} == set(EVALUATION_KEYS)


# ---- the split --------------------------------------------------------------------------------------------------


def test_an_evaluation_is_held_out_unless_told_otherwise():
    """The configuration alone, the way in which a run of the command line or of a script gets it."""
    config = training_config()
    assert config.get_evaluation_config_object().env_creator().unwrapped.split == "heldout"
    config.validate()
    assert config.get_evaluation_config_object().env_creator().unwrapped.split == "heldout"
    assert config.env_creator().unwrapped.split == "train"
    runner = fake_runner(config)
    trained, _ = runner.sample_groups(range(40), weight_version=0)
    assert splits_of(prompts_of(runner.engine.requests)) == {"train"} and trained.settings.split == "train"
    assert splits_of(played(runner)[0]) == {"heldout"}


def test_an_id_means_elsewhere_what_it_means_in_the_driver(monkeypatch):
    """A copy by pickle, in a process that has registered neither, and whose own id of that name is another one."""
    ids = {"Here-v0": Other, "Evaluated-v0": Rows}
    for name, env in ids.items():
        gymnasium.register(name, env)
    config = training_config(env="Evaluated-v0").environment("Here-v0")
    config.env_config = {}
    config.validate()
    sent = [cloudpickle.dumps(each) for each in (config, evaluation_config_of(as_config(GRPOConfig(), config)))]
    for name in ids:
        monkeypatch.delitem(gymnasium.registry, name)
    gymnasium.register("Here-v0", Fixed)
    try:
        training, evaluation = (cloudpickle.loads(each) for each in sent)
        again = cloudpickle.loads(cloudpickle.dumps(training))
    finally:
        del gymnasium.registry["Here-v0"]
    assert type(training.env_creator().unwrapped) is Other and type(again.env_creator().unwrapped) is Other
    for each in (training.get_evaluation_config_object(), evaluation):
        environment = each.env_creator().unwrapped
        assert (type(environment), environment.split) == (Rows, "heldout")
    changed = training.copy(copy_frozen=False).environment(env_config={"split": "all"})
    assert changed.env_creator().unwrapped.split == "all"
    with pytest.raises(UnregisteredEnv, match="'Here-v0' is not registered"):
        training_config().environment("Here-v0").validate()


def test_to_validate_stores_no_environment_and_no_class():
    config = training_config()
    config.validate()
    before = dict(vars(config))
    config.validate()
    assert vars(config) == before
    new = vars(training_config())
    assert set(before) == set(new)
    assert config.env_runner_cls is VLLMEnvRunner and new["_env_runner_cls"] is None


def test_what_training_resolved_is_not_what_a_later_evaluation_plays():
    config = training_config()
    config.validate()
    config.evaluation(evaluation_config={"env_config": {"digits": 1, "split": "all"}})
    environment = config.get_evaluation_config_object().env_creator().unwrapped
    assert (environment.digits, environment.split) == (1, "all")
    config.environment(env_config={"digits": 3})
    assert config.env_creator().unwrapped.digits == 3


def test_arguments_of_training_mean_nothing_to_another_environment():
    config = training_config(env=Other)
    config.validate()
    evaluation = config.get_evaluation_config_object()
    assert evaluation.env_config == {"split": "heldout"}
    assert isinstance(evaluation.env_creator().unwrapped, Other)


class Fixed(PromptEnv):
    """Three problems whose rewards are 1, 1 and 0; its constructor knows no split."""

    num_problems = 3

    def __init__(self):
        super().__init__(split="all")

    def prompt(self, rng):
        return self.prompt_at(int(rng.integers(3)))

    def prompt_at(self, index):
        self.index = index
        return f"{index}="

    def reward(self, response):
        return float(self.index < 2)


def test_an_environment_without_a_split_plays_what_it_has():
    config = training_config().environment(Fixed)
    config.env_config = {}
    config.validate()
    evaluation = config.get_evaluation_config_object()
    assert evaluation.env_config == {}
    batch, _ = fake_runner(config).sample_evaluation(range(3), greedy=False, weight_version=0)
    assert batch.settings.split == "all"
    assert batch.rewards.tolist() == [1.0, 1.0, 0.0]


def test_more_problems_than_there_are_is_an_error_that_names_the_option():
    config = training_config().evaluation(evaluation_duration=900)
    config.validate()
    with pytest.raises(ValueError, match=r"evaluation_duration=900\).*827 problems in split='heldout'"):
        fake_runner(config).sample_evaluation(range(900), greedy=False, weight_version=0)


class Refusing(FakeEngine):
    def load(self, weights):
        raise ValueError("a tensor is missing")


def test_an_evaluation_checks_the_weights():
    runner = fake_runner(as_config(GRPOConfig(), training_config()), engine=Refusing())
    with pytest.raises(RuntimeError, match="has weight version 0, the driver expects 3"):
        runner.sample_evaluation([0], greedy=False, weight_version=3)
    with pytest.raises(ValueError, match="a tensor is missing"):
        runner.load_weights([], 3, injection=NO_INJECTION)
    assert runner.weight_version is None
    with pytest.raises(RuntimeError, match="its last weight update failed"):
        runner.sample_evaluation([0], greedy=False, weight_version=0)


class Rows(PromptEnv):
    """A list of problems, walked through without a look at the split."""

    num_problems = 300

    def prompt(self, rng):
        return f"row {rng.integers(300)}"

    def prompt_at(self, index):
        return f"row {index}"

    def reward(self, response):
        return 0.0


class OwnRows(Rows):
    """The same, with the rows of this split alone."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rows = [row for row in (f"row {i}" for i in range(300)) if self.in_split(row)]
        self.num_problems = len(self.rows)

    def prompt_at(self, index):
        return self.rows[index]


def test_a_problem_of_another_split_is_an_error_and_no_heldout_figure():
    config = training_config().environment(Rows)
    config.env_config = {}
    runner = fake_runner(as_config(GRPOConfig(), config))
    with pytest.raises(ValueError, match=r"Rows: problem \d+, 'row \d+', does not belong to split='heldout'"):
        runner.sample_evaluation(range(200), greedy=False, weight_version=0)
    config.environment(OwnRows)
    texts, _, _ = played(fake_runner(as_config(GRPOConfig(), config)), range(20))
    assert {split_of(text, PromptEnv.heldout_fraction) for text in texts} == {"heldout"}


def test_what_is_called_held_out():
    """The split of training is "train", by the same rule; unknown is not known."""

    class Fewer(OwnRows):
        heldout_fraction = 0.05

    class OtherKey(OwnRows):
        def problem_key(self, prompt):
            return prompt.upper()

    facts = {
        (env.__name__, split): split_facts(env(split=split))
        for env in (OwnRows, Fewer, OtherKey)
        for split in ("train", "heldout", "all")
    }
    evaluated = facts["OwnRows", "heldout"]
    assert is_held_out(evaluated, [facts["OwnRows", "train"]])
    assert is_held_out(evaluated, [facts["OwnRows", "train"]] * 2)
    for trained in (*facts.values(), {}, {"split": "train", "split_rule": None}):
        if trained != facts["OwnRows", "train"]:
            assert not is_held_out(evaluated, [facts["OwnRows", "train"], trained])
    for other in (facts["OwnRows", "all"], facts["OwnRows", "train"], facts["Fewer", "heldout"], {}):
        assert not is_held_out(other, [facts["OwnRows", "train"]])


def test_no_seed_of_its_own_is_the_seed_of_the_run():
    config = as_config(GRPOConfig(), training_config(seed=None))
    assert [request.seed for request in played(fake_runner(config), range(3))[1]] == SEEDS_OF_RUN


class NoHeldout(Rows):
    def __init__(self, split="train", **options):
        if split == "heldout":
            raise TypeError("no such split here")
        super().__init__(split=split)


@pytest.mark.parametrize("interval, error", [(5, True), (None, False)])
def test_an_evaluation_that_can_not_be_played_is_noticed_at_the_start_if_one_is_due(interval, error):
    config = training_config().evaluation(evaluation_interval=interval).environment(NoHeldout)
    config.env_config = {}
    if error:
        with pytest.raises(TypeError, match="no such split here") as raised:
            fake_runner(as_config(GRPOConfig(), config))
        assert any("gets split='heldout'" in note for note in raised.value.__notes__)
        too_many = training_config().evaluation(evaluation_interval=interval, evaluation_duration=900)
        with pytest.raises(ValueError, match="827 problems in split='heldout'"):
            fake_runner(as_config(GRPOConfig(), too_many))
    else:
        fake_runner(as_config(GRPOConfig(), config))


# ---- keys that mean nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, message",
    [
        ("temprature", r"'temprature': ...}\) is unknown. Did you mean 'temperature'\?"),
        ("explore", r"'explore': ...}\) has no effect: every evaluation answers both by sampling and greedily"),
        ("num_env_runners", r"use evaluation\(evaluation_num_env_runners=...\)"),
        ("evaluation_duration", r"use evaluation\(evaluation_duration=...\)"),
        ("split", r"use env_config={'split': ...}"),
        ("group_size", r"'group_size': ...}\) is an option of the whole run"),
        ("lr", r"'lr': ...}\) is an option of the whole run"),
        ("vllm_args", r"'vllm_args': ...}\) is an option of the whole run"),
    ],
)
def test_a_key_that_would_change_nothing_is_refused(key, message):
    with pytest.raises(ValueError, match=message):
        training_config(**{key: 1}).validate()


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("temperature", "0.7", r"evaluation_config={'temperature': '0.7'}\) must be a finite number"),
        ("max_response_tokens", 8.5, r"{'max_response_tokens': 8.5}\) must be a whole number"),
        ("top_p", float("nan"), r"{'top_p': nan}\) must be a finite number above 0"),
        ("seed", -1, r"{'seed': -1}\) must be None or a whole number"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_before_anything_starts(key, value, message):
    with pytest.raises(ValueError, match=message):
        training_config(**{key: value}).validate()


def test_a_whole_configuration_is_no_evaluation_config():
    config = training_config()
    config.evaluation_config = GRPOConfig()
    with pytest.raises(ValueError, match="give a dict of what an evaluation does differently"):
        config.validate()


# ---- the mean ----------------------------------------------------------------------------------------------------


def test_what_cannot_be_scored_or_played_counts_as_wrong_and_is_reported():
    """Rewards 1, 1, 0 and seven without one: 2 of 10, not 2 of 3."""
    from tests.algorithms.test_unscorable_responses import batch_of

    batch = batch_of(*[[reward] for reward in (1.0, 1.0, 0.0, *[None] * 5)])
    metrics = evaluation_metrics(batch, prompts_too_long=2)
    assert metrics["episode_return_mean"] == pytest.approx(0.2)
    assert metrics["num_episodes"] == 10
    assert metrics["unscorable_responses"] == 5
    assert metrics["prompts_too_long"] == 2
    assert json.dumps(metrics)
