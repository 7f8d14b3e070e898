"""The options that all algorithms share, and those of RLlib that act here: types, ranges and defaults.

An algorithm's own stand in its config class, as `OPTIONS`.
"""

from __future__ import annotations

from rlhf_algos.algorithms.options import (
    Option,
    anything,
    either,
    flag,
    mapping,
    number,
    number_or_schedule,
    one_of,
    optional,
    sequence,
    text,
    whole,
)
from rlhf_algos.objectives.reduction import REDUCTION_MODES

#: Of this library.
SHARED_OPTIONS = (
    Option("language_model", "language_model_path", text(), "rlhf_algos/tiny-moe", argument="path", of_process=True),
    Option(
        "language_model",
        "trainer_dtype",
        one_of("float32", "bfloat16"),
        "float32",
        argument="dtype",
        of_process=True,
    ),
    Option("language_model", "gradient_checkpointing", flag(), False),
    Option("language_model", "trust_remote_code", flag(), False, of_process=True),
    Option("sampling", "temperature", number(at_least=0), 1.0),
    Option("sampling", "top_p", number(above=0, at_most=1), 1.0),
    Option("sampling", "top_k", whole(at_least=0), 0, why="0 is off"),
    Option("sampling", "max_response_tokens", whole(at_least=1), 16),
    Option("sampling", "stop_token_ids", sequence(whole(at_least=0)), ()),
    Option("sampling", "record_head", whole(at_least=0), 0, why="0 is off"),
    Option("sampling", "record_routes", flag(), False, of_process=True),
    Option("sampling", "greedy_evaluation", flag(), True),
    Option("mismatch_injection", "injected_weight_noise", number(at_least=0), 0.0, argument="weight_noise"),
    Option("mismatch_injection", "injected_rounding_bits", optional(whole(2, 8)), None, argument="rounding_bits"),
    Option("mismatch_injection", "injected_lag", whole(at_least=0), 0, argument="lag"),
    Option(
        "env_runners",
        "_num_cpus_per_env_runner",
        optional(number(at_least=0)),
        None,
        argument="num_cpus_per_env_runner",
        of_process=True,
    ),
    Option("env_runners", "num_threads_per_env_runner", optional(whole(at_least=1)), None, of_process=True),
    Option("env_runners", "weight_channel", anything(), "shared_memory", of_process=True),
    Option(
        "learners",
        "_num_cpus_per_learner",
        # RLlib's name for a number that it chooses.
        either(optional(number(at_least=0)), one_of("auto")),
        None,
        argument="num_cpus_per_learner",
        of_process=True,
    ),
    Option("learners", "num_threads_per_learner", optional(whole(at_least=1)), None),
    Option("vllm", "vllm_args", mapping(), {}, of_process=True),
    Option("deepspeed", "zero_stage", whole(1, 3), 1),
    Option("deepspeed", "offload_optimizer", flag(), False),
    Option("deepspeed", "token_budget", whole(at_least=1), 8192),
    Option("deepspeed", "deepspeed_config", mapping(), {}, argument="config"),
    Option("training", "prompts_per_iteration", whole(at_least=1), 64),
    Option("training", "group_size", whole(at_least=2), 8, why="an advantage compares the responses to one prompt"),
    Option("training", "normalize_std", flag(), True),
    Option("training", "loss_reduction", one_of(*REDUCTION_MODES), "token-mean"),
    Option("training", "loss_fixed_length", optional(whole(at_least=1)), None),
    Option("training", "unscorable_responses", one_of("stop", "leave_out"), "stop"),
    Option("training", "corrector", anything(), "none"),
    Option("training", "router_replay", anything(), "none", of_process=True),
    Option("training", "adam_betas", sequence(number(at_least=0, below=1), length=2), (0.9, 0.999)),
    Option("training", "adam_eps", number(at_least=0), 1e-8),
    Option("training", "weight_decay", number(at_least=0), 0.0),
    Option("debugging", "save_batches", optional(text()), None),
    Option("offline_data", "accept_different", sequence(text()), ()),
)

#: Of RLlib, with the defaults that fit here.
RLLIB_OPTIONS = (
    Option("environment", "env_config", mapping(), {}, as_it_is=True),
    Option("env_runners", "num_env_runners", whole(at_least=0), 1, of_process=True),
    Option("env_runners", "num_gpus_per_env_runner", number(at_least=0), 0, of_process=True),
    Option("learners", "num_learners", whole(at_least=0), 1, of_process=True),
    Option("learners", "num_gpus_per_learner", number(at_least=0), 0, of_process=True),
    Option(
        "resources",
        "num_cpus_for_main_process",
        number(above=0),
        0.1,
        why="Tune drops an empty first bundle of the placement group, and RLlib would place every actor in its "
        "neighbour's bundle",
    ),
    Option(
        "resources",
        "placement_strategy",
        one_of("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
        "PACK",
    ),
    Option("training", "lr", number_or_schedule(number(at_least=0)), 3e-4),
    Option("training", "grad_clip", optional(number(above=0)), 1.0),
    Option("training", "num_epochs", whole(at_least=1), 1),
    Option("training", "minibatch_size", optional(whole(at_least=1)), None),
    Option("evaluation", "evaluation_interval", optional(whole(at_least=0)), None),
    Option("evaluation", "evaluation_duration", whole(at_least=1), 200, why="it is the number of problems"),
    Option("evaluation", "evaluation_num_env_runners", whole(at_least=0), 0, of_process=True),
    Option("evaluation", "evaluation_parallel_to_training", flag(), False),
    Option("reporting", "min_time_s_per_iteration", optional(number(at_least=0)), None),
    Option("reporting", "min_train_timesteps_per_iteration", optional(whole(at_least=0)), 0),
    Option("reporting", "min_sample_timesteps_per_iteration", optional(whole(at_least=0)), 0),
    # NumPy's generators, which RLlib seeds, take 32 bits.
    Option("debugging", "seed", optional(whole(0, 2**32 - 1)), None),
    Option("debugging", "log_level", one_of("DEBUG", "INFO", "WARN", "ERROR"), "WARN"),
    Option("debugging", "log_sys_usage", flag(), True),
    Option("fault_tolerance", "restart_failed_env_runners", flag(), True, of_process=True),
    Option("fault_tolerance", "ignore_env_runner_failures", flag(), False, of_process=True),
    Option("fault_tolerance", "max_num_env_runner_restarts", whole(at_least=0), 1000, of_process=True),
    Option("fault_tolerance", "env_runner_health_probe_timeout_s", number(at_least=0), 30.0, of_process=True),
    Option("fault_tolerance", "env_runner_restore_timeout_s", number(at_least=0), 1800.0),
)
