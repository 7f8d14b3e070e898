"""Options of RLlib that would change nothing here are refused, all of them, with what to use instead."""

from functools import partial

import pytest
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback

from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.refused_options import REFUSED, REFUSED_ARGUMENTS
from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.algorithms.rllib_options import (
    DECLARED,
    FIRED_CALLBACKS,
    INTERNAL,
    USED,
    check_rllib_options,
)
from tests.learner.conftest import make_batch


def base():
    return GRPOConfig().environment("rlhf_algos/Addition-v0")


def test_every_field_of_rllib_is_decided_about_once():
    """On a new version of RLlib: look in its source whether the field acts here, then put it into one table."""
    tables = [set(DECLARED), set(USED), set(INTERNAL), set(REFUSED)]
    fields = set(vars(AlgorithmConfig()))
    decided = set().union(*tables)
    assert fields - decided == set(), "new fields"
    assert decided - fields == set(), "fields that are gone"
    assert sum(len(table) for table in tables) == len(decided), "a field in two tables"
    rows = [(section, name) for section, _, names in REFUSED_ARGUMENTS for name in names]
    assert len(rows) == len(set(rows)) == len(REFUSED)


def test_the_named_sections_and_arguments_are_rllibs():
    import inspect

    for refused in REFUSED.values():
        if refused.section == "update_from_dict":
            continue
        parameters = inspect.signature(getattr(AlgorithmConfig, refused.section)).parameters
        # Those without a section of their own are set as attributes only.
        if refused.argument not in parameters:
            assert refused.argument in ATTRIBUTES_ONLY, refused


ATTRIBUTES_ONLY = {
    "input_spaces_jsonable",
    "sync_filters_on_rollout_workers_timeout_s",
    "offline_evaluation_duration",
    "offline_evaluation_parallel_to_training",
}


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}-changed"
    if isinstance(value, dict):
        return {**value, "changed": 1}
    return [*value, "changed"] if isinstance(value, list) else "changed"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_changed_value_is_refused_by_name(name):
    config = base()
    # `setattr` on RLlib's own attribute, as `update_from_dict` and Tune do it.
    setattr(config, name, changed(getattr(config, name)))
    with pytest.raises(ValueError) as error:
        config.validate()
    refused = REFUSED[name]
    assert str(error.value).startswith(f"{refused.section}({refused.argument}=")
    assert str(error.value).endswith(f" has no effect here: {refused.reason}.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.training(train_batch_size_per_learner=128), r"^training\(train_batch_size_per_learner=128\) .*"),
        (lambda c: c.training(gamma=0.5), r"^training\(gamma=0.5\) has no effect here"),
        (lambda c: c.env_runners(num_envs_per_env_runner=4), r"^env_runners\(num_envs_per_env_runner=4\).*group_size"),
        (lambda c: c.env_runners(rollout_fragment_length=7), r"^env_runners\(rollout_fragment_length=7\)"),
        (lambda c: c.env_runners(explore=False), r"^env_runners\(explore=False\) .* use sampling"),
        (lambda c: c.callbacks(on_episode_end=print), r"^callbacks\(on_episode_end=.* it would never be called"),
        (lambda c: c.rl_module(model_config={"a": 1}), r"^rl_module\(model_config="),
        (lambda c: c.env_runners(create_local_env_runner=True), r"^env_runners\(create_local_env_runner=True\)"),
        (lambda c: c.environment(observation_space=3), r"^environment\(observation_space=3\)"),
        (lambda c: c.evaluation(evaluation_sample_timeout_s=5.0), r"^evaluation\(evaluation_sample_timeout_s=5.0\)"),
    ],
)
def test_through_the_section(change, message):
    config = base()
    change(config)
    with pytest.raises(ValueError, match=message):
        config.validate()


def test_callbacks_that_are_never_called_are_refused_in_a_class_too():
    class Useful(RLlibCallback):
        def on_train_result(self, **kwargs):
            pass

    class Useless(Useful):
        def on_episode_end(self, **kwargs):
            pass

    base().callbacks(Useful).validate()
    base().callbacks([Useful, RLlibCallback]).validate()
    for given in (Useless, [Useful, Useless]):
        with pytest.raises(ValueError, match=r"callbacks\(Useless\): its on_episode_end has no effect here"):
            base().callbacks(given).validate()
    for name in FIRED_CALLBACKS:
        base().callbacks(**{name: print}).validate()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("compute_loss_for_module", "return a TokenLoss from the config's token_loss"),
        ("trains_on_head", "return a TokenLoss from the config's token_loss"),
        ("correction_weights", "return a TokenLoss from the config's token_loss"),
        ("add_mismatch", "a TokenLoss returns the metrics of its own too"),
        ("compute_gradients", "DeepSpeed computes and applies the gradients"),
    ],
)
def test_a_learner_with_a_loss_of_its_own_is_refused(name, instead):
    from rlhf_algos.learner.deepspeed_learner import DeepSpeedLearner

    mine = type("Mine", (DeepSpeedLearner,), {name: lambda self, **kwargs: None})
    below = type("Below", (mine,), {})
    for given in (mine, below):
        message = rf"learners\(learner_class={given.__name__}\): its {name} has no effect here.*: {instead}"
        with pytest.raises(ValueError, match=message):
            base().learners(learner_class=given).validate()
    base().learners(learner_class=type("Useful", (DeepSpeedLearner,), {"build": lambda self: None})).validate()


class Counting(RLlibCallback):
    def __init__(self, start=0):
        self.count = start

    def on_train_result(self, **kwargs):
        self.count += 1


class Deaf(Counting):
    def on_sample_end(self, **kwargs):
        pass


def test_callables_that_make_callbacks():
    """RLlib calls whatever it is given; a class can be looked at before, what a function makes when it is made."""
    for make in (partial(Counting, 2), partial(partial(Counting), 2), lambda: Counting(2)):
        config = base().callbacks(make)
        config.validate()
        algorithm = object.__new__(GRPO)
        algorithm.callbacks = [make() for make in [config.callbacks_class]]
        assert [callback.count for callback in algorithm.callbacks] == [2]
    with pytest.raises(ValueError, match=r"callbacks\(Deaf\): its on_sample_end has no effect here"):
        base().callbacks(partial(partial(Deaf), 2)).validate()
    base().callbacks(lambda: Deaf()).validate()
    with pytest.raises(ValueError, match=r"callbacks\(Deaf\): its on_sample_end has no effect here"):
        object.__new__(GRPO).callbacks = [Counting(), Deaf()]


def test_rllibs_setup_sets_the_callbacks_before_it_starts_anything(monkeypatch):
    started = []
    for name in ("ray.rllib.algorithms.algorithm.EnvRunnerGroup", "ray.util.placement_group"):
        monkeypatch.setattr(name, lambda *args, **kwargs: started.append(args))
    algorithm = object.__new__(GRPO)
    algorithm.config = base().callbacks(lambda: Deaf())
    algorithm.config.validate()
    with pytest.raises(ValueError, match="its on_sample_end has no effect here"):
        Algorithm.setup(algorithm, algorithm.config)
    assert started == []


def test_what_waits_for_a_restored_run_is_refused():
    class Waiting(RLlibCallback):
        def on_checkpoint_loaded(self, **kwargs):
            pass

    message = r"on_checkpoint_loaded.* has no effect here: a run can't be restored yet"
    for given in ({"callbacks_class": Waiting}, {"on_checkpoint_loaded": print}):
        with pytest.raises(ValueError, match=message):
            base().callbacks(**given).validate()


def test_an_attributes_value_is_written_out_for_an_error_only():
    class Large:
        def __repr__(self):
            raise AssertionError("written out")

    config = base().environment(env_config={"rows": Large()})
    check_rllib_options(config)


@pytest.mark.parametrize("config", [GRPOConfig, ReinforceSCConfig])
def test_defaults_and_saved_batches_pass_also_by_way_of_a_dict(config, tmp_path):
    make_batch([2, 3]).save(tmp_path / "step-000001.safetensors")
    for made in (
        config().environment("rlhf_algos/Addition-v0"),
        config().environment("rlhf_algos/Addition-v0").offline_data(input_=tmp_path),
    ):
        made.validate()
        again = config().update_from_dict(made.to_dict())
        again.validate()
        made.get_evaluation_config_object().validate()
        again.copy(copy_frozen=False).validate()
        config.from_state(made.get_state()).validate()


def test_a_misspelt_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'grop_size': .* GRPOConfig has no option 'grop_size'. Did you mean 'group_"):
        GRPOConfig().update_from_dict({"env": "rlhf_algos/Addition-v0", "grop_size": 4})
    config = base()
    config.grop_size = 4
    with pytest.raises(ValueError, match=r"^grop_size=4: GRPOConfig has no option 'grop_size'. Did you mean 'group_"):
        config.validate()


def test_options_of_a_subclass_of_ones_own_are_known():
    class Mine(GRPOConfig):
        def __init__(self, algo_class=None):
            super().__init__(algo_class=algo_class)
            self.my_option = 3

    config = Mine().environment("rlhf_algos/Addition-v0").update_from_dict({"my_option": 4})
    config.validate()
    assert config.my_option == 4
    with pytest.raises(ValueError, match="Mine has no option 'my_opton'. Did you mean 'my_option'"):
        Mine().update_from_dict({"my_opton": 4})


def test_saved_batches_that_nothing_would_read():
    with pytest.raises(ValueError, match=r"input_='b' is read by nothing: call offline_data\(input_=...\)"):
        base().update_from_dict({"input_": "b"}).validate()
