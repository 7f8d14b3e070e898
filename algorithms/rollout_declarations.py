"""Options of what is played: environment, model, sampling, engine, rollout actors."""

from __future__ import annotations

from functools import partial

from rlhf_algos.algorithms.options import (
    Option,
    anything,
    flag,
    mapping,
    number,
    one_of,
    optional,
    sequence,
    text,
    whole,
)

_rllib = partial(Option, of_rllib=True)

ENVIRONMENT = (
    _rllib(
        "environment",
        "env",
        anything(),
        None,
        "the task: a Gymnasium id, a `PromptEnv` class or a function",
        as_it_is=True,
    ),
    _rllib("environment", "env_config", mapping(), {}, "arguments of the environment", as_it_is=True),
)
LANGUAGE_MODEL = (
    Option(
        "language_model",
        "language_model_path",
        text(),
        "rlhf_algos/tiny-moe",
        'a bundled name ("rlhf_algos/tiny-moe"), a Hugging Face directory, or a hub id ("org/name")',
        argument="path",
        of_process=True,
    ),
    Option(
        "language_model",
        "trainer_dtype",
        one_of("float32", "bfloat16"),
        "float32",
        'the trainer\'s, "float32" or "bfloat16" (with float32 master weights)',
        argument="dtype",
        of_process=True,
    ),
    Option(
        "language_model",
        "gradient_checkpointing",
        flag(),
        False,
        "recompute activations in the backward pass instead of keeping them",
    ),
    Option(
        "language_model",
        "trust_remote_code",
        flag(),
        False,
        "run Python code that ships with the model",
        of_process=True,
    ),
)
SAMPLING = (
    Option("sampling", "temperature", number(at_least=0), 1.0, "of the sampler and the trainer"),
    Option(
        "sampling",
        "top_p",
        number(above=0, at_most=1),
        1.0,
        "nucleus sampling; the trainer renormalizes on the recorded support",
    ),
    Option(
        "sampling",
        "top_k",
        whole(at_least=0),
        0,
        "sampling from the most probable tokens; the trainer renormalizes likewise",
        why="0 is off",
    ),
    Option("sampling", "max_response_tokens", whole(at_least=1), 16, "longest response"),
    Option("sampling", "stop_token_ids", sequence(whole(at_least=0)), (), "further ids that end a response"),
    Option(
        "sampling", "record_head", whole(at_least=0), 0, "most probable tokens recorded per position", why="0 is off"
    ),
    Option("sampling", "record_routes", flag(), False, "record the chosen experts", of_process=True),
    Option(
        "sampling",
        "greedy_evaluation",
        flag(),
        True,
        "evaluations also answer greedily and report `greedy_return_mean`",
    ),
)
MISMATCH_INJECTION = (
    Option(
        "mismatch_injection",
        "injected_weight_noise",
        number(at_least=0),
        0.0,
        "standard deviation of noise on the sampler's weights, relative to each tensor's root mean square",
        argument="weight_noise",
    ),
    Option(
        "mismatch_injection",
        "injected_rounding_bits",
        optional(whole(2, 8)),
        None,
        "round the sampler's matrices per output channel to this many bits, 2 to 8",
        argument="rounding_bits",
    ),
    Option(
        "mismatch_injection",
        "injected_lag",
        whole(at_least=0),
        0,
        "sample with weights that are this many versions old",
        argument="lag",
    ),
)
VLLM = (Option("vllm", "vllm_args", mapping(), {}, "arguments of the engine by name", of_process=True),)
ENV_RUNNERS = (
    _rllib("env_runners", "num_env_runners", whole(at_least=0), 1, "rollout actors", of_process=True),
    Option(
        "env_runners",
        "_num_cpus_per_env_runner",
        optional(number(at_least=0)),
        None,
        "what Ray counts for an actor; None for a share that fits every machine",
        argument="num_cpus_per_env_runner",
        of_process=True,
    ),
    _rllib("env_runners", "num_gpus_per_env_runner", number(at_least=0), 0, "what Ray counts", of_process=True),
    Option(
        "env_runners",
        "num_threads_per_env_runner",
        optional(whole(at_least=1)),
        None,
        "threads of each actor while it samples",
        of_process=True,
    ),
    Option(
        "env_runners",
        "weight_channel",
        anything(),
        "shared_memory",
        "how they get the trainer's weights",
        of_process=True,
    ),
)
