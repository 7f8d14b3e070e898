"""Models that a process is done with. **Reaches into a private part of DeepSpeed 0.19.8.**

ZeRO-3 caches which parameters it may release after each layer, in an `lru_cache` without a limit on a method: its keys
are the method's object and the layers, so every model that was ever trained with ZeRO-3 in a process stays in memory.
`tests/learner/test_kl_reference.py` tells when that changes.
"""

import inspect


def forget_released_models() -> None:
    """Empties that cache; an engine that is still in use fills it again.

    To be called after an engine was destroyed, and before the garbage collection that is to free its model.
    """
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    instrumented = vars(PartitionedParameterCoordinator)["_PartitionedParameterCoordinator__params_to_release"]
    inspect.getclosurevars(instrumented).nonlocals["func"].cache_clear()
