"""What each field of RLlib's `AlgorithmConfig` means here: it acts, or a changed value is refused with what to use.

RLlib has fields for every kind of reinforcement learning, and sets any of them without a word. The three tables below
hold every field of RLlib 2.60 exactly once; a test fails on one that is new or gone until somebody decides about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils import force_list

from rlhf_algos.algorithms.base.declarations import RLLIB_OPTIONS
from rlhf_algos.envs import PromptSpace, UnicodeText

if TYPE_CHECKING:
    from rlhf_algos.algorithms.base.config import LanguageModelAlgorithmConfig


@dataclass(frozen=True)
class Used:
    """A field that acts.

    Attributes:
        what: it does.
        of_process: whether a rollout actor or learner is started with it and keeps it while it lives.
    """

    what: str
    of_process: bool = False


#: Methods of a callback class, and functions given to `callbacks(...)`, that are called.
FIRED_CALLBACKS = ("on_algorithm_init", "on_train_result", "on_evaluate_start", "on_evaluate_end")

#: Fields that act, besides the declared ones.
USED = {
    "env": Used("the task"),
    "callbacks_class": Used("its methods named in FIRED_CALLBACKS are called"),
    **{f"callbacks_{name}": Used("called") for name in FIRED_CALLBACKS},
    "num_cpus_per_env_runner": Used("CPUs that Ray counts; a whole number is also the number of threads", True),
    "num_cpus_per_learner": Used("likewise", True),
    "custom_resources_for_main_process": Used("counted by Ray"),
    "custom_resources_per_env_runner": Used("counted by Ray", True),
    "custom_resources_per_learner": Used("counted by Ray", True),
    "validate_env_runners_after_construction": Used("True waits for the actors before the learners start"),
    "env_runner_cls": Used("the rollout actor, or a subclass of it", True),
    "_learner_class": Used("a subclass of the algorithm's learner", True),
    "learner_config_dict": Used("for a learner_class of one's own to read"),
    "input_": Used("saved batches"),
    "offline_data_class": Used("reads them; set by offline_data(input_=...)"),
    "_is_online": Used("set by offline_data(input_=...)", True),
    "grad_clip_by": Used("checked: DeepSpeed clips by the global norm"),
    "evaluation_config": Used("what an evaluation does differently"),
    "evaluation_duration_unit": Used("checked: problems are counted, as episodes"),
    "stats_cls_lookup": Used("reductions of metrics logged by callbacks"),
    "_validate_config": Used("switches RLlib's own checks off, not this library's"),
}

#: Fields that RLlib or this library sets for itself, with the reason why no user's value is looked at here.
INTERNAL = {
    "algo_class": "the algorithm that the config belongs to",
    "policies": "more than one is refused as multi_agent(...); RLlib writes the one in different forms",
    "in_evaluation": "set in the copy that an evaluation gets",
    "_is_atari": "RLlib's memory of having looked at the environment",
    "_is_frozen": "whether fields may still be set",
    "_prior_exploration_config": "RLlib's memory of exploration_config",
    "_per_module_overrides": "RLlib's memory of algorithm_config_overrides_per_module",
    "_dont_auto_sync_env_runner_states": "set: rollout actors have no state but their weights",
    "simple_optimizer": "set by RLlib's validation",
}


@dataclass(frozen=True)
class Refused:
    """A field whose value changes nothing.

    Attributes:
        section: method of the config that sets it.
        argument: of that method.
        reason: why, and what to use instead.
    """

    section: str
    argument: str
    reason: str

    def shown(self, value: Any) -> str:
        """As a user sets it."""
        return f"{self.section}({self.argument}={value!r})"


_BATCH = "an iteration's batch is prompts_per_iteration x group_size responses; set those two in training(...)"
_SAMPLE = "a rollout actor plays whole groups of responses; use training(prompts_per_iteration=..., group_size=...)"
_NO_STEPS = "an episode is a prompt and a response, sampled by vLLM; use sampling(...) and the environment's reward"
_EPISODES = (
    "rollout actors have no RLlib episodes, and it would never be called; use on_train_result, or the environment's "
    "reward"
)
_CONNECTOR = "prompts and responses are texts and pass through no connector; use the environment, or sampling(...)"
_STATES = "a rollout actor's only state is its weights, which are published after every update"
_OFFLINE = "saved batches are all that is read; use offline_data(input_=...), and debugging(save_batches=...) to write"
_OFFLINE_EVALUATION = "evaluations play problems; use evaluation(evaluation_interval=..., evaluation_duration=...)"
_TORCH = "DeepSpeed runs the model; use deepspeed(config=...)"
_TENSORFLOW = "models are PyTorch models"
_MULTI_AGENT = "an algorithm of this library trains one language model"
_MODEL = "the model is the one that language_model(path) names"
_WAITS = "an evaluation waits for all its problems"
_LEARNER_BATCH = "learners get RolloutBatch objects and pass them through no connector; subclass the learner"
_CHECKPOINT = "algo.save_pretrained(folder) writes the model"
_OLD = "it belongs to RLlib's old interfaces"

# section, reason, arguments
_REFUSED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "python_environment",
        "RLlib's new interfaces do not set it; use ray.init(runtime_env={'env_vars': ...})",
        ("extra_python_environs_for_driver", "extra_python_environs_for_worker"),
    ),
    ("resources", "use learners(num_gpus_per_learner=...), env_runners(num_gpus_per_env_runner=...)", ("num_gpus",)),
    ("resources", _OLD, ("_fake_gpus",)),
    ("learners", "Ray shows each learner its own GPU; use num_gpus_per_learner", ("local_gpu_idx",)),
    ("framework", _TENSORFLOW, ("framework", "eager_tracing", "eager_max_retraces")),
    ("framework", _TENSORFLOW, ("tf_session_args", "local_tf_session_args")),
    ("framework", _TORCH, ("torch_compile_learner", "torch_compile_learner_what_to_compile")),
    ("framework", _TORCH, ("torch_compile_learner_dynamo_backend", "torch_compile_learner_dynamo_mode")),
    ("framework", "use vllm(enforce_eager=False)", ("torch_compile_worker",)),
    ("framework", "use vllm(...)", ("torch_compile_worker_dynamo_backend", "torch_compile_worker_dynamo_mode")),
    ("framework", _TORCH, ("torch_ddp_kwargs",)),
    ("framework", "a step whose gradient is not finite stops the run", ("torch_skip_nan_gradients",)),
    ("api_stack", "nothing here works without RLlib's new interfaces", ("enable_rl_module_and_learner",)),
    ("api_stack", "nothing here works without RLlib's new interfaces", ("enable_env_runner_and_connector_v2",)),
    ("environment", "prompts and responses are texts", ("observation_space", "action_space", "action_mask_key")),
    ("environment", "change the reward in the environment", ("clip_rewards",)),
    ("environment", "responses are texts", ("normalize_actions", "clip_actions", "render_env")),
    ("environment", "use rlhf_algos.envs.check_env", ("disable_env_checking",)),
    ("env_runners", "no engine runs in the driver; use num_env_runners", ("create_local_env_runner",)),
    ("env_runners", _SAMPLE, ("num_envs_per_env_runner", "rollout_fragment_length", "batch_mode")),
    ("env_runners", _SAMPLE, ("gym_env_vectorize_mode", "remote_worker_envs", "remote_env_batch_wait_ms")),
    ("env_runners", _NO_STEPS, ("explore", "exploration_config", "episodes_to_numpy", "episode_lookback_horizon")),
    ("env_runners", "an iteration waits for all its groups", ("sample_timeout_s",)),
    ("env_runners", "an iteration waits for all its groups", ("max_requests_in_flight_per_env_runner",)),
    ("env_runners", "there is no environment in the driver", ("create_env_on_local_worker",)),
    ("env_runners", _CONNECTOR, ("env_to_module_connector", "module_to_env_connector", "preprocessor_pref")),
    ("env_runners", _CONNECTOR, ("add_default_connectors_to_env_to_module_pipeline",)),
    ("env_runners", _CONNECTOR, ("add_default_connectors_to_module_to_env_pipeline",)),
    ("env_runners", _CONNECTOR, ("observation_filter", "update_worker_filter_stats", "use_worker_filter_stats")),
    ("env_runners", _STATES, ("merge_env_runner_states", "broadcast_env_runner_states")),
    ("env_runners", _STATES, ("use_env_runner_state_server", "env_runner_state_server_max_concurrency")),
    ("env_runners", _OLD, ("compress_observations", "enable_tf1_exec_eagerly", "sample_collector")),
    ("env_runners", _OLD, ("sampler_perf_stats_ema_coef",)),
    ("learners", _LEARNER_BATCH, ("learner_connector", "add_default_connectors_to_learner_pipeline")),
    ("learners", _LEARNER_BATCH, ("num_aggregator_actors_per_learner", "max_requests_in_flight_per_aggregator_actor")),
    ("learners", "an iteration waits for its update", ("max_requests_in_flight_per_learner",)),
    ("training", "a response gets one reward, and no later one is discounted", ("gamma",)),
    ("training", _BATCH, ("train_batch_size", "train_batch_size_per_learner")),
    ("training", "with minibatch_size the order is a new one in every epoch", ("shuffle_batch_per_epoch",)),
    ("training", _MODEL, ("model",)),
    ("training", "use adam_betas, adam_eps, weight_decay, or deepspeed(offload_optimizer=...)", ("optimizer",)),
    ("callbacks", _EPISODES, ("on_environment_created", "on_episode_created", "on_episode_start")),
    ("callbacks", _EPISODES, ("on_episode_step", "on_episode_end", "on_sample_end")),
    ("callbacks", "actors that died come back unannounced; see groups_sampled_again", ("on_env_runners_recreated",)),
    ("callbacks", _OFFLINE_EVALUATION, ("on_offline_eval_runners_recreated", "on_evaluate_offline_start")),
    ("callbacks", _OFFLINE_EVALUATION, ("on_evaluate_offline_end",)),
    ("callbacks", "a run can't be restored yet, and it would never be called", ("on_checkpoint_loaded",)),
    ("multi_agent", _MULTI_AGENT, ("count_steps_by", "policy_map_capacity", "policy_mapping_fn", "policies_to_train")),
    ("multi_agent", _MULTI_AGENT, ("policy_states_are_swappable", "observation_fn")),
    ("multi_agent", _MULTI_AGENT, ("algorithm_config_overrides_per_module",)),
    ("offline_data", _OFFLINE, ("input_read_method", "input_read_method_kwargs", "input_read_schema")),
    ("offline_data", _OFFLINE, ("input_read_episodes", "input_read_sample_batches", "input_read_batch_size")),
    ("offline_data", _OFFLINE, ("input_filesystem", "input_filesystem_kwargs", "input_compress_columns")),
    ("offline_data", _OFFLINE, ("input_spaces_jsonable", "materialize_data", "materialize_mapped_data")),
    ("offline_data", _OFFLINE, ("map_batches_kwargs", "iter_batches_kwargs", "ignore_final_observation")),
    ("offline_data", _OFFLINE, ("prelearner_class", "prelearner_buffer_class", "prelearner_buffer_kwargs")),
    ("offline_data", _OFFLINE, ("prelearner_module_synch_period", "prelearner_use_recorded_module_states")),
    ("offline_data", _OFFLINE, ("dataset_num_iters_per_learner", "input_config", "actions_in_input_normalized")),
    ("offline_data", _OFFLINE, ("postprocess_inputs", "shuffle_buffer_size", "offline_sampling")),
    ("offline_data", _OFFLINE, ("output", "output_config", "output_compress_columns", "output_max_file_size")),
    ("offline_data", _OFFLINE, ("output_max_rows_per_file", "output_write_remaining_data", "output_write_method")),
    ("offline_data", _OFFLINE, ("output_write_method_kwargs", "output_filesystem", "output_filesystem_kwargs")),
    ("offline_data", _OFFLINE, ("output_write_episodes",)),
    ("evaluation", _WAITS, ("evaluation_sample_timeout_s", "evaluation_force_reset_envs_before_iteration")),
    ("evaluation", _WAITS, ("evaluation_auto_duration_min_env_steps_per_sample",)),
    ("evaluation", _WAITS, ("evaluation_auto_duration_max_env_steps_per_sample",)),
    ("evaluation", _WAITS, ("evaluation_unhealthy_workers_timeout_s", "evaluation_error_after_n_consecutive_skips")),
    ("evaluation", "subclass the algorithm and override evaluate()", ("custom_evaluation_function",)),
    ("evaluation", _OLD, ("off_policy_estimation_methods", "ope_split_batch_by_episode")),
    ("env_runners", _OLD, ("sync_filters_on_rollout_workers_timeout_s",)),
    ("evaluation", _OFFLINE_EVALUATION, ("offline_evaluation_interval", "num_offline_eval_runners")),
    ("evaluation", _OFFLINE_EVALUATION, ("offline_evaluation_type", "offline_eval_runner_class")),
    ("evaluation", _OFFLINE_EVALUATION, ("offline_loss_for_module_fn", "offline_evaluation_duration")),
    ("evaluation", _OFFLINE_EVALUATION, ("offline_evaluation_parallel_to_training", "offline_evaluation_timeout_s")),
    ("evaluation", _OFFLINE_EVALUATION, ("num_cpus_per_offline_eval_runner", "num_gpus_per_offline_eval_runner")),
    ("evaluation", _OFFLINE_EVALUATION, ("custom_resources_per_offline_eval_runner",)),
    ("evaluation", _OFFLINE_EVALUATION, ("restart_failed_offline_eval_runners",)),
    ("evaluation", _OFFLINE_EVALUATION, ("ignore_offline_eval_runner_failures",)),
    ("evaluation", _OFFLINE_EVALUATION, ("max_num_offline_eval_runner_restarts",)),
    ("evaluation", _OFFLINE_EVALUATION, ("offline_eval_runner_restore_timeout_s",)),
    ("evaluation", _OFFLINE_EVALUATION, ("max_requests_in_flight_per_offline_eval_runner",)),
    ("evaluation", _OFFLINE_EVALUATION, ("validate_offline_eval_runners_after_construction",)),
    ("evaluation", _OFFLINE_EVALUATION, ("offline_eval_runner_health_probe_timeout_s",)),
    ("evaluation", _OFFLINE_EVALUATION, ("offline_eval_rl_module_inference_only",)),
    ("evaluation", _OFFLINE_EVALUATION, ("broadcast_offline_eval_runner_states",)),
    ("evaluation", _OFFLINE_EVALUATION, ("offline_eval_batch_size_per_runner",)),
    ("evaluation", _OFFLINE_EVALUATION, ("dataset_num_iters_per_offline_eval_runner",)),
    ("reporting", _EPISODES, ("keep_per_episode_custom_metrics", "metrics_episode_collection_timeout_s")),
    ("reporting", "each result is that of its own iteration", ("metrics_num_episodes_for_smoothing",)),
    ("reporting", "grad_norm is in every result", ("log_gradients",)),
    ("checkpointing", _CHECKPOINT, ("export_native_model_files", "checkpoint_trainable_policies_only")),
    ("debugging", _OLD, ("fake_sampler",)),
    ("fault_tolerance", "Ray restarts an actor at once", ("delay_between_env_runner_restarts_s",)),
    ("fault_tolerance", "use training(unscorable_responses='leave_out')", ("restart_failed_sub_environments",)),
    ("fault_tolerance", "use env_runner_restore_timeout_s", ("num_consecutive_env_runner_failures_tolerance",)),
    ("rl_module", _MODEL, ("model_config", "rl_module_spec")),
    ("experimental", "checkpoints are not RLlib's", ("_use_msgpack_checkpoints",)),
    ("experimental", _TORCH, ("_torch_grad_scaler_class",)),
    ("experimental", "use training(lr=[[step, value], ...])", ("_torch_lr_scheduler_classes",)),
    ("experimental", _TENSORFLOW, ("_tf_policy_handles_more_than_one_loss",)),
    ("experimental", _OLD, ("_disable_preprocessor_api", "_disable_action_flattening")),
    ("experimental", _OLD, ("_disable_initialize_loss_from_dummy_batch",)),
    ("update_from_dict", _OLD, ("env_task_fn", "enable_connectors", "monitor", "evaluation_num_episodes")),
    ("update_from_dict", _OLD, ("metrics_smoothing_episodes", "timesteps_per_iteration", "min_iter_time_s")),
    ("update_from_dict", _OLD, ("collect_metrics_timeout", "min_time_s_per_reporting")),
    ("update_from_dict", _OLD, ("min_train_timesteps_per_reporting", "min_sample_timesteps_per_reporting")),
    ("update_from_dict", _OLD, ("input_evaluation", "policy_map_cache", "worker_cls", "synchronize_filters")),
    ("update_from_dict", _OLD, ("enable_async_evaluation", "custom_async_evaluation_function")),
    ("update_from_dict", _OLD, ("_enable_rl_module_api", "auto_wrap_old_gym_envs")),
    ("update_from_dict", _OLD, ("always_attach_evaluation_results", "buffer_size", "prioritized_replay")),
    ("update_from_dict", _OLD, ("learning_starts", "replay_batch_size", "replay_sequence_length", "replay_mode")),
    ("update_from_dict", _OLD, ("prioritized_replay_alpha", "prioritized_replay_beta", "prioritized_replay_eps")),
    ("update_from_dict", _OLD, ("_disable_execution_plan_api",)),
)

# Arguments that RLlib keeps under another name.
_ATTRIBUTES = {
    "framework": "framework_str",
    "env_to_module_connector": "_env_to_module_connector",
    "module_to_env_connector": "_module_to_env_connector",
    "learner_connector": "_learner_connector",
    "train_batch_size_per_learner": "_train_batch_size_per_learner",
    "dataset_num_iters_per_offline_eval_runner": "dataset_num_iters_per_eval_runner",
    "model_config": "_model_config",
    "rl_module_spec": "_rl_module_spec",
}


def _attribute(section: str, argument: str) -> str:
    return f"callbacks_{argument}" if section == "callbacks" else _ATTRIBUTES.get(argument, argument)


#: Fields whose changed value is refused, by name.
REFUSED = {
    _attribute(section, argument): Refused(section, argument, reason)
    for section, reason, arguments in _REFUSED
    for argument in arguments
}
#: Fields that are declared with type and range.
DECLARED = frozenset(option.name for option in RLLIB_OPTIONS)

# Values besides the default that this library sets.
_SET_HERE = {"observation_space": PromptSpace, "action_space": UnicodeText}
_DEFAULT_HERE = {"create_local_env_runner": False}
# Attributes that RLlib gives a config after it was made.
_LATER = frozenset({"class", "worker_index"})


@cache
def rllib_defaults() -> Mapping[str, Any]:
    """RLlib's own defaults, by field."""
    return dict(vars(AlgorithmConfig()))


@cache
def known_names(config_class: Any) -> frozenset[str]:
    """Names that a new config of the class has, and those that it can be asked for and told."""
    members = [member for cls in config_class.__mro__ for member in vars(cls).items()]
    properties = {name for name, value in members if isinstance(value, property)}
    return frozenset(vars(config_class())) | properties | _LATER


class UnknownOptionError(ValueError):
    """A name that no option has."""


def refuse_unknown_name(config_class: Any, name: str, shown: Callable[[], str]) -> None:
    """Raises UnknownOptionError with the nearest name if the config has no such option.

    Args:
        config_class: of the config.
        name: of the option.
        shown: how it was given, for an error; to form it may take long.
    """
    names = known_names(config_class)
    if name in names or name.startswith("_"):
        return
    close = difflib.get_close_matches(name, [known for known in names if not known.startswith("_")], 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownOptionError(f"{shown()}: {config_class.__name__} has no option {name!r}.{hint}")


def check_rllib_options(config: LanguageModelAlgorithmConfig) -> None:
    """Raises ValueError for an attribute that is no option, and for an option of RLlib that would change nothing."""
    for name, value in vars(config).items():
        refuse_unknown_name(type(config), name, partial("{}={!r}".format, name, value))
    # RLlib itself sets some of them in the copy that an evaluation gets.
    if config.in_evaluation:
        return
    for name, refused in REFUSED.items():
        value = getattr(config, name)
        if not _is_default(name, value):
            raise ValueError(f"{refused.shown(value)} has no effect here: {refused.reason}.")
    _check_callbacks_class(config)


def _is_default(name: str, value: Any) -> bool:
    if isinstance(value, _SET_HERE.get(name, ())):
        return True
    default = _DEFAULT_HERE.get(name, rllib_defaults()[name])
    return value is default or bool(isinstance(value, bool) == isinstance(default, bool) and value == default)


def _check_callbacks_class(config: LanguageModelAlgorithmConfig) -> None:
    """Looks at classes, and at what `functools.partial` makes of them; what another callable makes is seen at start."""
    for make in force_list(config.callbacks_class):
        while isinstance(make, partial):
            make = make.func
        if isinstance(make, type):
            require_fired_callbacks(make)


def require_fired_callbacks(cls: type) -> None:
    """Raises ValueError if a class of callbacks has a method that would never be called."""
    for name in _overridden(cls):
        raise ValueError(
            f"callbacks({cls.__name__}): its {name} has no effect here: {_reason(name)}. Called are "
            f"{', '.join(FIRED_CALLBACKS)}."
        )


def _overridden(cls: Any) -> Iterator[str]:
    for name in dir(RLlibCallback):
        changed = getattr(cls, name, None) is not getattr(RLlibCallback, name)
        if name.startswith("on_") and name not in FIRED_CALLBACKS and changed:
            yield name


def _reason(callback: str) -> str:
    known = REFUSED.get(f"callbacks_{callback}")
    return known.reason if known else _EPISODES
