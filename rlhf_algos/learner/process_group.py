"""The process group that DeepSpeed joins: RLlib's own for remote learners, a group of one otherwise.

**Reaches into a private part of torch 2.13.** RLlib has the learners meet at `env://`: rank 0 opens a store on a port
that Ray has chosen, and torch opens such a store on *all* of the machine's addresses, for everybody and without a
password. There is no option for it, and a rendezvous handler can be registered but not replaced in public.
`tests/learner/test_process_group.py` tells when that changes.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import _rendezvous_handlers

LOOPBACK_INTERFACE = "lo"


def meet_at_one_address() -> None:
    """From now on rank 0 of a process group made with `env://` listens at MASTER_ADDR, and nowhere else.

    Where that is a loopback address (`rlhf_algos.local_ray`), the backends' own connections stay on it as well.
    """
    _rendezvous_handlers["env"] = _meet


def _meet(url: str, timeout: timedelta = default_pg_timeout) -> Iterator[tuple[distributed.Store, int, int]]:
    """torch's handler of `env://`, with a store that listens at one address."""
    query = dict(pair.split("=") for pair in url.partition("?")[2].split("&") if pair)
    rank = int(query.get("rank") or os.environ["RANK"])
    world_size = int(query.get("world_size") or os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if is_loopback(host):
        stay_on_loopback()
    listener = _listener(host, port) if rank == 0 else None
    store = distributed.TCPStore(
        host,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        # From here on it is the store's, which closes it.
        master_listen_fd=None if listener is None else listener.detach(),
    )
    yield store, rank, world_size
    raise RuntimeError("A process group that met at env:// can't meet again.")


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens at `host` and `port`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(2048)
    return listener


def is_loopback(host: str) -> bool:
    """Whether the name or address is one that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def stay_on_loopback() -> None:
    """gloo and NCCL listen on the loopback interface from now on, unless the user has named another."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, LOOPBACK_INTERFACE)


def ensure_process_group() -> None:
    """Sets the environment DeepSpeed reads, from RLlib's process group or from a new group of this process alone."""
    if not distributed.is_initialized():
        stay_on_loopback()
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


def reduce_device() -> str:
    """Where tensors must be that all ranks combine."""
    return "cuda" if distributed.get_backend() == "nccl" else "cpu"


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor that every rank has, on the CPU; all ranks call it."""
    if distributed.get_world_size() == 1:
        return values
    shared = values.to(reduce_device())
    distributed.all_reduce(shared)
    return shared.cpu()


def deepspeed_join() -> None:
    """Lets DeepSpeed adopt the torch process group that exists."""
    from rlhf_algos.learner.accelerator import deepspeed

    deepspeed.init_distributed(
        dist_backend=distributed.get_backend(),
        auto_mpi_discovery=False,
        verbose=False,
        dist_init_required=False,
    )
