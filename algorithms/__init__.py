"""The algorithms: each is one file with an RLlib `Algorithm`, its configuration, its advantages and its token loss."""

from importlib import import_module
from typing import Any

#: Where each is; importing one takes a second, so a name is enough until it is used.
ALGORITHMS = {
    "grpo": "rlhf_algos.algorithms.grpo.GRPO",
    "gspo": "rlhf_algos.algorithms.gspo.GSPO",
    "reinforce_sc": "rlhf_algos.algorithms.reinforce_sc.ReinforceSC",
    "rloo": "rlhf_algos.algorithms.rloo.RLOO",
}


def algorithm_class(name: str) -> type[Any]:
    """The class that a name of the table stands for."""
    module, _, cls = ALGORITHMS[name].rpartition(".")
    return getattr(import_module(module), cls)
