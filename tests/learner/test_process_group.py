"""Where learners meet: at the address that Ray has given, and nowhere else."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# In processes of their own: a process group and its environment stay.
SCRIPT = """
import os, sys
import torch
from torch import distributed
from rlhf_algos.learner.process_group import meet_at_one_address
from tests.listening import listening_addresses
rank, world_size, port, replaced = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "replaced"
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
if replaced:
    meet_at_one_address()
distributed.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)
total = torch.tensor([rank + 1.0])
distributed.all_reduce(total)
print("total", total.item(), "listening", *sorted(set().union(*listening_addresses(os.getpid()).values())), flush=True)
distributed.barrier()
distributed.destroy_process_group()
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ranks(world_size, handler):
    port = str(free_port())
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(world_size), port, handler],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(world_size)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * world_size, outputs
    return [output[0].strip() for output in outputs]


def test_ranks_meet_on_the_loopback_address_only():
    first, second = ranks(2, "replaced")
    for shown in (first, second):
        assert shown.startswith("total 3.0 listening ")
        # The store of rank 0, and gloo's own listener of each rank.
        assert shown.partition("listening ")[2].split() == ["127.0.0.1"]


def test_torch_alone_listens_everywhere():
    """Why the handler is replaced; when this fails, torch has learned it and the replacement can go."""
    (shown,) = ranks(1, "torch's")
    assert set(shown.partition("listening ")[2].split()) & {"::", "0.0.0.0"}, shown


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("gpu7", False),
    ],
)
def test_loopback_addresses(host, expected):
    from rlhf_algos.learner.process_group import is_loopback

    assert is_loopback(host) is expected
