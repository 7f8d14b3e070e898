"""Fields of RLlib's `AlgorithmConfig` whose changed value is refused, each with what to use instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
EPISODES = (
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
_LEARNER_BATCH = "learners get RolloutBatch objects and pass them through no connector; see token_loss()"
_CHECKPOINT = "algo.save_pretrained(folder) writes the model"
_OLD = "it belongs to RLlib's old interfaces"

#: Section, reason, arguments.
REFUSED_ARGUMENTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
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
    ("callbacks", EPISODES, ("on_environment_created", "on_episode_created", "on_episode_start")),
    ("callbacks", EPISODES, ("on_episode_step", "on_episode_end", "on_sample_end")),
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
    ("reporting", EPISODES, ("keep_per_episode_custom_metrics", "metrics_episode_collection_timeout_s")),
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
    for section, reason, arguments in REFUSED_ARGUMENTS
    for argument in arguments
}
