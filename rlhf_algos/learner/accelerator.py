"""DeepSpeed, imported after it was told about the machine. **Reaches into a private part of DeepSpeed 0.19.8.**

DeepSpeed picks its accelerator when it is imported. On a CPU it would also compile an operator for inference when the
process group starts: minutes of silence at the first run, a C++ compiler that little else here needs, and one cache
for all environments of a user. There is no switch for it, only the table of operators that it looks up.
`tests/learner/test_learner_options.py` tells when that changes.
"""

import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import deepspeed
else:

    class _DeepSpeed:
        """The module, imported when it is first used: a driver names learners, and never runs one."""

        def __getattr__(self, name: str) -> Any:
            if not torch.cuda.is_available():
                os.environ.setdefault("DS_ACCELERATOR", "cpu")
            import deepspeed

            if not torch.cuda.is_available():
                deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
            return getattr(deepspeed, name)

    deepspeed = _DeepSpeed()

__all__ = ["deepspeed"]
