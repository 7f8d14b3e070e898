"""DeepSpeed, imported after it was told about the machine. **Reaches into a private part of DeepSpeed 0.19.8.**

DeepSpeed picks its accelerator when it is imported. On a CPU it would also compile an operator for inference when the
process group starts: minutes of silence at the first run, a C++ compiler that little else here needs, and one cache
for all environments of a user. There is no switch for it, only the table of operators that it looks up.
`tests/learner/test_learner_options.py` tells when that changes.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed

if not torch.cuda.is_available():
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

__all__ = ["deepspeed"]
