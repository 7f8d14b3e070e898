"""`reset_config`: which settings need other processes, and that a reset algorithm is like a new one."""

import copy

import pytest
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback

from rlhf_algos.algorithms import reset
from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.algorithms.options import Option, whole
from rlhf_algos.algorithms.parts import Parts
from rlhf_algos.algorithms.reset import processes_of
from rlhf_algos.algorithms.rllib_options import USED
from rlhf_algos.driver.publication import Publication
from rlhf_algos.learner.deepspeed_learner import DeepSpeedLearner
from rlhf_algos.models import resolve_model
from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner
from rlhf_algos.weight_sync import NO_INJECTION, SharedMemory


def base(config_class=GRPOConfig):
    return config_class().environment("rlhf_algos/Addition-v0").debugging(seed=0)


class OtherRunner(VLLMEnvRunner):
    """Another class of rollout actors."""


class OtherLearner(DeepSpeedLearner):
    """Another class of learners."""


# Another value of everything that a process is started with.
OTHERS = {
    "language_model_path": "model",
    "trainer_dtype": "bfloat16",
    "trust_remote_code": True,
    "record_routes": True,
    "router_replay": "r3",
    "_num_cpus_per_env_runner": 0.3,
    "num_cpus_per_env_runner": 0.3,
    "num_threads_per_env_runner": 77,
    "_num_cpus_per_learner": 0.3,
    "num_cpus_per_learner": 0.3,
    "vllm_args": {"max_model_len": 48},
    "num_env_runners": 3,
    "num_gpus_per_env_runner": 1,
    "num_learners": 3,
    "num_gpus_per_learner": 1,
    "evaluation_num_env_runners": 1,
    "restart_failed_env_runners": False,
    "ignore_env_runner_failures": True,
    "max_num_env_runner_restarts": 7,
    "env_runner_health_probe_timeout_s": 7.0,
    "custom_resources_per_env_runner": {"big": 1},
    "custom_resources_per_learner": {"big": 1},
    "env_runner_cls": OtherRunner,
    "weight_channel": {"type": "shared_memory", "parent": "/tmp"},
    "_learner_class": OtherLearner,
    "_is_online": False,
}
# Options of the sections that start processes, which a running process takes over all the same.
TAKEN_OVER = {
    "gradient_checkpointing": "the model is loaded again",
    "num_threads_per_learner": "`rebuild` sets them",
    "num_cpus_for_main_process": "of the process that Tune started",
    "placement_strategy": "likewise",
    "env_runner_restore_timeout_s": "the driver waits so long",
}
SECTIONS = ("language_model", "env_runners", "learners", "vllm", "resources", "fault_tolerance")


@pytest.fixture
def running():
    """An algorithm as after `build_algo`, without its processes."""
    algorithm = object.__new__(GRPO)
    config = base()
    config.validate()
    algorithm.begin(config)
    composed_of_nothing(algorithm)
    return algorithm


def test_every_setting_of_a_process_is_in_this_files_list():
    declared = base().declared_options().values()
    of_process = {option.name for option in declared if option.of_process}
    of_process |= {name for name, used in USED.items() if used.of_process}
    assert of_process == set(OTHERS)
    undecided = {o.name for o in declared if o.section in SECTIONS} - of_process - set(TAKEN_OVER)
    assert undecided == set(), "is a process started with it? Then of_process=True, else it belongs to TAKEN_OVER"


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_another_value_needs_other_processes(running, name, tmp_path):
    value = OTHERS[name]
    if name == "language_model_path":
        (tmp_path / "config.json").write_text("{}")
        value = str(tmp_path)
    config = base()
    setattr(config, name, value)
    assert not running.reset_config(config)


def test_a_declared_option_of_ones_own_counts_too(running):
    class Mine(GRPOConfig):
        OPTIONS = (Option("env_runners", "my_size", whole(), 1, of_process=True),)

    mine, other = base(Mine), base(Mine)
    other.my_size = 2
    assert processes_of(mine) != processes_of(other)


def test_what_comes_to_the_same_needs_no_others():
    same = base().language_model(resolve_model("rlhf_algos/tiny-moe")).vllm(dtype="float32")
    assert processes_of(same) == processes_of(base())
    trained_otherwise = copy.deepcopy(same).training(lr=1.0, group_size=2).deepspeed(zero_stage=3)
    trained_otherwise.learners(num_threads_per_learner=3).sampling(temperature=0.5)
    assert processes_of(trained_otherwise) == processes_of(base())


def test_callbacks_hear_of_the_new_beginning_when_it_is_complete(running, monkeypatch):
    heard, published = [], []

    class Listening(RLlibCallback):
        def on_algorithm_init(self, *, algorithm, metrics_logger, **kwargs):
            heard.append(("class", published[-1], metrics_logger is algorithm.metrics, self))

    def function(*, algorithm, metrics_logger, **kwargs):
        heard.append(("function", published[-1], metrics_logger is algorithm.metrics, None))

    monkeypatch.setattr(Publication, "publish", lambda self, version: published.append(version))
    monkeypatch.setattr(GRPO, "compose", composed_of_nothing)
    monkeypatch.setattr(reset, "on_learners", lambda group, function: None)
    for _ in range(2):
        published.append(None)
        assert running.reset_config(base().callbacks(Listening, on_algorithm_init=function))
    assert [entry[:3] for entry in heard] == [("class", 0, True), ("function", 0, True)] * 2
    assert heard[0][3] is not heard[2][3], "every run has its own object"


def test_the_last_runs_weights_go_before_the_next_one_counts_from_0(running, monkeypatch):
    done = []
    monkeypatch.setattr(Publication, "end", lambda self: done.append(("end", self)))
    monkeypatch.setattr(Publication, "publish", lambda self, version: done.append((version, self)))
    monkeypatch.setattr(GRPO, "compose", composed_of_nothing)
    monkeypatch.setattr(reset, "on_learners", lambda group, function: None)
    before = running.parts.publication
    assert running.reset_config(base())
    assert done == [("end", before), (0, running.parts.publication)] and before is not running.parts.publication


def test_callbacks_hear_of_the_first_beginning_when_it_is_complete(monkeypatch):
    """RLlib's `setup` ends with the same event; then there are no parts yet."""
    heard, published = [], []

    class Listening(RLlibCallback):
        def on_algorithm_init(self, *, algorithm, **kwargs):
            heard.append(("class", published[:], algorithm.parts is not None))

    def function(*, algorithm, **kwargs):
        heard.append(("function", published[:], algorithm.parts is not None))

    def setup(self, config):
        self.callbacks = [self.config.callbacks_class()]
        arguments = {"algorithm": self, "metrics_logger": self.metrics}
        make_callback("on_algorithm_init", self.callbacks, self.config.callbacks_on_algorithm_init, kwargs=arguments)

    monkeypatch.setattr(Algorithm, "setup", setup)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: "a trial's")
    monkeypatch.setattr(Publication, "publish", lambda self, version: published.append(version))
    monkeypatch.setattr(GRPO, "compose", composed_of_nothing)
    algorithm, config = object.__new__(GRPO), base().learners(num_learners=0)
    config.callbacks(Listening, on_algorithm_init=function).validate()
    config.freeze()
    algorithm.setup(config)
    assert heard == [("class", [0], True), ("function", [0], True)]
    assert config.callbacks_on_algorithm_init is function and len(algorithm.callbacks) == 1
    algorithm.abandon()


def test_a_channel_that_can_not_be_closed_keeps_nothing_else_open(tmp_path, monkeypatch):
    class Stuck(SharedMemory):
        def close(self):
            super().close()
            raise OSError("busy")

    monkeypatch.setattr(Algorithm, "setup", lambda self, config: None)
    monkeypatch.setattr("ray.util.get_current_placement_group", lambda: "a trial's")
    monkeypatch.setattr(Publication, "publish", lambda self, version: None)
    monkeypatch.setattr(GRPO, "compose", composed_of_nothing)
    monkeypatch.setattr("rlhf_algos.algorithms.algorithm.SHARED_MEMORY", tmp_path)
    algorithm, config = object.__new__(GRPO), base().learners(num_learners=0)
    config.env_runners(weight_channel={"type": Stuck, "parent": str(tmp_path)}).validate()
    algorithm.setup(config)
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OSError, match="busy"):
        algorithm.abandon()
    assert list(tmp_path.iterdir()) == []
    algorithm.abandon()


def composed_of_nothing(algorithm):
    publication = Publication(None, None, None, is_received=False, injection=NO_INJECTION, seed=0)
    algorithm.parts = Parts(None, publication, None, None, None, None)
