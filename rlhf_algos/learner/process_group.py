"""The process group that DeepSpeed joins: RLlib's own for remote learners, a group of one otherwise."""

from __future__ import annotations

import os

import torch
from torch import distributed


def ensure_process_group() -> None:
    """Sets the environment DeepSpeed reads, from RLlib's process group or from a new group of this process alone."""
    if not distributed.is_initialized():
        # An in-memory store: no port is opened, so any number of runs can share a machine.
        distributed.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            store=distributed.HashStore(),
            rank=0,
            world_size=1,
        )
    os.environ["RANK"] = str(distributed.get_rank())
    os.environ["WORLD_SIZE"] = str(distributed.get_world_size())
    # Ray shows each learner only its own GPU, which then is device 0.
    os.environ["LOCAL_RANK"] = "0"
    deepspeed_join()


def deepspeed_join() -> None:
    """Lets DeepSpeed adopt the torch process group that exists."""
    from rlhf_algos.learner.accelerator import deepspeed

    deepspeed.init_distributed(
        dist_backend=distributed.get_backend(),
        auto_mpi_discovery=False,
        verbose=False,
        dist_init_required=False,
    )
