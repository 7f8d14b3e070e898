"""Models that a process is done with. **Reaches into private parts of DeepSpeed 0.19.8.**

ZeRO-3 keeps every model that was ever trained in a process in memory, in two places: an `lru_cache` without a limit on
a method, whose keys are the method's object and the model's layers, and a list of the modules whose forward pass is
running, on which each engine puts its model for good. `tests/learner/test_kl_reference.py` tells when that changes.
"""

import inspect

from torch import nn


def forget_model(model: nn.Module) -> None:
    """Takes a model out of both; other engines of the process go on.

    To be called after the model's engine was destroyed, and before the garbage collection that is to free it.
    """
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    # Also layers in which a forward pass was interrupted by an error.
    released = set(model.modules())
    FWD_MODULE_STACK[:] = [module for module in FWD_MODULE_STACK if module not in released]
    instrumented = vars(PartitionedParameterCoordinator)["_PartitionedParameterCoordinator__params_to_release"]
    # What an engine that is still in use had in it, it finds out again.
    inspect.getclosurevars(instrumented).nonlocals["func"].cache_clear()
