"""DeepSpeed, imported after it was told about the machine: it picks its accelerator at import."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed

__all__ = ["deepspeed"]
