"""Sums and means over ranks that have not measured the same."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlhf_algos.learner.statistics import TokenStatistics

# In processes of their own: a process group stays.
SCRIPT = """
import json, sys
import torch
from torch import distributed
from rlhf_algos.learner.statistics import TokenStatistics
rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
statistics, mask = TokenStatistics(), torch.tensor([True, True, False])
statistics.add_mean("both", torch.tensor([1.0, 2.0, 9.0]) + rank, mask)
name = "of_rank_0" if rank == 0 else "another_of_rank_1"
statistics.add_mean(name, torch.tensor([5.0, 7.0, 9.0]) + rank, mask)
if rank == 1:
    statistics.add_mean("of_responses", torch.tensor([4.0, 6.0, 9.0]), mask, sample_ids=torch.tensor([8, 8, 3]))
    statistics.add_sum("sum_of_rank_1", torch.tensor(3.0))
    statistics.add_max("max_of_rank_1", torch.tensor(-2.0))
means, raw = statistics.reduce()
print(json.dumps([means, {name: float(value) for name, value in raw.items()}]), flush=True)
distributed.barrier()
distributed.destroy_process_group()
"""


def test_ranks_that_measured_different_things(tmp_path):
    """As a rank does that got a dummy micro-batch only; each name stays with its own numbers."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    first, second = (json.loads(output.splitlines()[-1]) for output in outputs)
    assert first == second
    assert first == [
        {"both": 2.0, "of_rank_0": 6.0, "another_of_rank_1": 7.0, "of_responses": 5.0},
        {"sum_of_rank_1": 3.0, "max_of_rank_1": -2.0},
    ]


def test_responses_count_once_however_long():
    """Means 2 and 6 of a response of three tokens and one of one; the untrained token may be anything."""
    statistics = TokenStatistics()
    values, ids = torch.tensor([1.0, 6.0, 2.0, math.nan, 3.0]), torch.tensor([4, 9, 4, 9, 4])
    mask = torch.tensor([True, True, True, False, True])
    statistics.add_mean("of_tokens", values, mask)
    statistics.add_mean("of_responses", values, mask, sample_ids=ids)
    statistics.add_mean("of_nothing", values, torch.zeros(5, dtype=torch.bool), sample_ids=ids)
    assert statistics.reduce()[0] == pytest.approx({"of_tokens": 3.0, "of_responses": 4.0})
