"""The options that all algorithms share, and those of RLlib that act here: types, ranges, defaults and meanings.

An algorithm's own stand in its config class, as `OPTIONS`. Sections are called and recorded in the order of this list.
"""

from __future__ import annotations

from functools import partial

from rlhf_algos.algorithms.learner_declarations import DEEPSPEED, LEARNERS, TRAINING
from rlhf_algos.algorithms.options import (
    Option,
    anything,
    flag,
    number,
    one_of,
    optional,
    sequence,
    text,
    whole,
)
from rlhf_algos.algorithms.rollout_declarations import (
    ENV_RUNNERS,
    ENVIRONMENT,
    LANGUAGE_MODEL,
    MISMATCH_INJECTION,
    SAMPLING,
    VLLM,
)

_rllib = partial(Option, of_rllib=True)

_EVALUATION = (
    _rllib(
        "evaluation",
        "evaluation_interval",
        optional(whole(at_least=0)),
        None,
        "iterations between evaluations; None or 0 evaluates only when asked",
    ),
    _rllib(
        "evaluation",
        "evaluation_duration",
        whole(at_least=1),
        200,
        "problems of an evaluation",
        why="it is the number of problems",
    ),
    _rllib(
        "evaluation",
        "evaluation_num_env_runners",
        whole(at_least=0),
        0,
        "actors of their own for evaluations; with 0 those that sample answer",
        of_process=True,
    ),
    _rllib(
        "evaluation",
        "evaluation_config",
        anything(),
        None,
        "what an evaluation does differently; may hold what `EVALUATION_KEYS` lists",
        as_it_is=True,
    ),
    _rllib(
        "evaluation",
        "evaluation_parallel_to_training",
        flag(),
        False,
        "evaluate on actors of their own while the next iteration trains",
        recorded=False,
    ),
)
_DEBUGGING = (
    Option(
        "debugging",
        "save_batches",
        optional(text()),
        None,
        "folder to which the batch of each training step is written",
    ),
    # NumPy's generators, which RLlib seeds, take 32 bits.
    _rllib(
        "debugging",
        "seed",
        optional(whole(0, 2**32 - 1)),
        None,
        "of everything random in a run; None draws one at its start",
    ),
    _rllib(
        "debugging",
        "log_level",
        one_of("DEBUG", "INFO", "WARN", "ERROR"),
        "WARN",
        "of Ray's and RLlib's messages",
        recorded=False,
    ),
    _rllib("debugging", "log_sys_usage", flag(), True, "results also say how busy the machine was", recorded=False),
)
_RESOURCES = (
    _rllib(
        "resources",
        "num_cpus_for_main_process",
        number(above=0),
        0.1,
        "what Ray counts for the driver of a trial",
        why="Tune drops an empty first bundle of the placement group, and RLlib would place every actor in its "
        "neighbour's bundle",
    ),
    _rllib(
        "resources",
        "placement_strategy",
        one_of("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
        "PACK",
        "how Ray spreads a trial's processes over machines",
        recorded=False,
    ),
)
_fault_tolerance = partial(_rllib, "fault_tolerance", recorded=False)
_FAULT_TOLERANCE = (
    _fault_tolerance("restart_failed_env_runners", flag(), True, "start a dead actor again", of_process=True),
    _fault_tolerance(
        "ignore_env_runner_failures", flag(), False, "go on without a dead actor's groups", of_process=True
    ),
    _fault_tolerance("max_num_env_runner_restarts", whole(at_least=0), 1000, "restarts of one actor", of_process=True),
    _fault_tolerance(
        "env_runner_health_probe_timeout_s",
        number(at_least=0),
        30.0,
        "seconds that an actor has to say it is alive",
        of_process=True,
    ),
    _fault_tolerance(
        "env_runner_restore_timeout_s", number(at_least=0), 1800.0, "seconds that a restarted actor has to be ready"
    ),
)
_reporting = partial(_rllib, "reporting", recorded=False)
_REPORTING = (
    _reporting("min_time_s_per_iteration", optional(number(at_least=0)), None, "shortest iteration in seconds"),
    _reporting(
        "min_train_timesteps_per_iteration", optional(whole(at_least=0)), 0, "fewest responses trained in an iteration"
    ),
    _reporting(
        "min_sample_timesteps_per_iteration",
        optional(whole(at_least=0)),
        0,
        "fewest responses sampled in an iteration",
    ),
)
_OFFLINE_DATA = (
    Option(
        "offline_data",
        "accept_different",
        sequence(text()),
        (),
        'settings in which batches may differ from this configuration ("model", "temperature", "top_p", "top_k")',
        in_files=False,
    ),
)

OPTIONS: tuple[Option, ...] = (
    *ENVIRONMENT,
    *LANGUAGE_MODEL,
    *SAMPLING,
    *MISMATCH_INJECTION,
    *VLLM,
    *ENV_RUNNERS,
    *LEARNERS,
    *DEEPSPEED,
    *TRAINING,
    *_EVALUATION,
    *_DEBUGGING,
    *_RESOURCES,
    *_FAULT_TOLERANCE,
    *_REPORTING,
    *_OFFLINE_DATA,
)
