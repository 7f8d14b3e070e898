"""What an evaluation may do differently from training, and the configuration that results."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rlhf_algos.driver.held_out import HELDOUT
from rlhf_algos.envs import EnvCreator

if TYPE_CHECKING:
    from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig
    from rlhf_algos.algorithms.derived_settings import DerivedSettings

#: Keys of `evaluation(evaluation_config={...})`, each with what it sets. Everything else is that of training.
EVALUATION_KEYS = {
    "env": "another environment",
    "env_config": "arguments of the environment, added to those of training; `split` is 'heldout' unless given",
    "temperature": "of the sampled answers",
    "top_p": "of the sampled answers",
    "top_k": "of the sampled answers",
    "max_response_tokens": "longest answer, sampled or greedy",
    "stop_token_ids": "ids that end an answer",
    "seed": "of the sampled answers' noise",
    "unscorable_responses": "'stop', or 'leave_out': counted, with reward 0",
}

# Names that RLlib's users look for, and what does their work here.
_INSTEAD = {
    "explore": "every evaluation answers both by sampling and greedily; sampling(greedy_evaluation=False) leaves the "
    "greedy answers out, and temperature, top_p, top_k change the sampled ones",
    "greedy": "use sampling(greedy_evaluation=...)",
    "greedy_evaluation": "use sampling(greedy_evaluation=...)",
    "num_env_runners": "use evaluation(evaluation_num_env_runners=...)",
    "duration": "use evaluation(evaluation_duration=...)",
    "evaluation_duration": "use evaluation(evaluation_duration=...)",
    "evaluation_num_env_runners": "use evaluation(evaluation_num_env_runners=...)",
    "evaluation_interval": "use evaluation(evaluation_interval=...)",
    "split": "use env_config={'split': ...}",
}


def check_evaluation_config(config: LanguageModelAlgorithmConfig) -> None:
    """Raises for a key of `evaluation_config` that would change nothing.

    Raises:
        ValueError: names the key and the nearest valid one, or what to use instead.
    """
    given = config.evaluation_config
    if given is None or config.in_evaluation:
        return
    if not isinstance(given, Mapping):
        raise ValueError(
            f"evaluation(evaluation_config={type(given).__name__}(...)): give a dict of what an evaluation does "
            f"differently; it can set {', '.join(EVALUATION_KEYS)}."
        )
    for key in given:
        if key in EVALUATION_KEYS:
            continue
        option = f"evaluation(evaluation_config={{{key!r}: ...}})"
        if key in _INSTEAD:
            raise ValueError(f"{option} has no effect: {_INSTEAD[key]}.")
        near = get_close_matches(str(key), EVALUATION_KEYS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        kind = "is an option of the whole run" if key in vars(config) else "is unknown"
        raise ValueError(f"{option} {kind}.{hint} An evaluation can set {', '.join(EVALUATION_KEYS)}.")


def complete_evaluation_config(evaluation: DerivedSettings, training: DerivedSettings) -> None:
    """Finishes RLlib's copy of the training configuration: the environment's arguments, and its split.

    Args:
        evaluation: the copy, with the keys of `evaluation_config` set.
        training: what it was made of.
    """
    if evaluation.seed is None:
        evaluation.seed = training.seed
    given = training.evaluation_config or {}
    own_arguments = given.get("env_config") or {}
    if "env" in given and given["env"] != training.env:
        # Arguments of another environment mean nothing to this one.
        evaluation.env_config = dict(own_arguments)
    if "split" not in own_arguments and accepts_split(evaluation.env_creator):
        evaluation.env_config = {**evaluation.env_config, "split": HELDOUT}


def accepts_split(creator: EnvCreator) -> bool:
    """Whether the environment's constructor takes a `split`, by name or through `**kwargs`.

    A function's signature says nothing of what it makes, so it keeps the split that it chooses.
    """
    if not isinstance(creator.spec.entry_point, type):
        return False
    parameters = inspect.signature(creator.spec.entry_point).parameters.values()
    return any(p.name == "split" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
