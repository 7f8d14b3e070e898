"""Options of what is learned from it: ranks, training engine, training."""

from __future__ import annotations

from functools import partial

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
    whole,
)
from rlhf_algos.objectives.reduction import REDUCTION_MODES

_rllib = partial(Option, of_rllib=True)

LEARNERS = (
    _rllib("learners", "num_learners", whole(at_least=0), 1, "ZeRO ranks", of_process=True),
    Option(
        "learners",
        "_num_cpus_per_learner",
        # RLlib's name for a number that it chooses.
        either(optional(number(at_least=0)), one_of("auto")),
        None,
        "what Ray counts for a rank; None for a share that fits every machine",
        argument="num_cpus_per_learner",
        of_process=True,
    ),
    _rllib("learners", "num_gpus_per_learner", number(at_least=0), 0, "what Ray counts", of_process=True),
    Option(
        "learners",
        "num_threads_per_learner",
        optional(whole(at_least=1)),
        None,
        "threads of each rank while it updates",
    ),
)
DEEPSPEED = (
    Option(
        "deepspeed",
        "zero_stage",
        whole(1, 3),
        1,
        "1 (optimizer states sharded), 2 (and gradients) or 3 (and parameters)",
    ),
    Option("deepspeed", "offload_optimizer", flag(), False, "optimizer states in host memory, stepped on the CPU"),
    Option(
        "deepspeed",
        "token_budget",
        whole(at_least=1),
        8192,
        "tokens in a micro-batch; a longer sequence gets one of its own",
    ),
    Option(
        "deepspeed",
        "deepspeed_config",
        mapping(),
        {},
        "further DeepSpeed settings, merged and checked",
        argument="config",
    ),
)
TRAINING = (
    Option("training", "prompts_per_iteration", whole(at_least=1), 64, "groups sampled in an iteration"),
    Option(
        "training",
        "group_size",
        whole(at_least=2),
        8,
        "responses to each prompt, at least 2",
        why="an advantage compares the responses to one prompt",
    ),
    Option(
        "training",
        "normalize_std",
        flag(),
        True,
        "divide advantages by the group's standard deviation (MATH 2.1 or 2.2)",
    ),
    Option(
        "training",
        "loss_reduction",
        one_of(*REDUCTION_MODES),
        "token-mean",
        "how tokens make one loss",
    ),
    Option(
        "training",
        "loss_fixed_length",
        optional(whole(at_least=1)),
        None,
        'the length that "seq-mean-token-sum-norm" divides by',
    ),
    Option(
        "training",
        "unscorable_responses",
        one_of("stop", "leave_out"),
        "stop",
        "what happens if the environment's reward raises or is no finite number",
    ),
    Option(
        "training",
        "corrector",
        anything(),
        "none",
        "what is done about the difference between trainer and sampler",
    ),
    Option(
        "training",
        "router_replay",
        anything(),
        "none",
        "whose experts the trainer's mixture-of-experts layers use",
        of_process=True,
    ),
    Option(
        "training",
        "adam_betas",
        sequence(number(at_least=0, below=1), length=2),
        (0.9, 0.999),
        "AdamW's decay rates of the mean and of the mean square of gradients",
    ),
    Option("training", "adam_eps", number(at_least=0), 1e-8, "AdamW's summand below the fraction line"),
    Option("training", "weight_decay", number(at_least=0), 0.0, "AdamW's"),
    _rllib(
        "training",
        "lr",
        number_or_schedule(number(at_least=0)),
        3e-4,
        "learning rate: a number or a schedule over sampled responses",
    ),
    _rllib("training", "grad_clip", optional(number(above=0)), 1.0, "largest global norm of the gradient"),
    _rllib("training", "num_epochs", whole(at_least=1), 1, "passes over a batch"),
    _rllib(
        "training",
        "minibatch_size",
        optional(whole(at_least=1)),
        None,
        "responses per optimizer step; None takes one step on all",
    ),
)
