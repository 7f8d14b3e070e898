"""What an algorithm asks of a cluster with GPUs, on a cluster whose GPUs are only counted."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import time
import ray
from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.local_ray import start_ray

start_ray(num_cpus=4, num_gpus=3, log_to_driver=False)

def config(learners, gpus=1):
    return (
        GRPOConfig()
        .environment("rlhf_algos/Addition-v0")
        .env_runners(num_env_runners=1, num_gpus_per_env_runner=1)
        .learners(num_learners=learners, num_gpus_per_learner=gpus)
    )

request = GRPO.default_resource_request(config(2))
print("bundles", [dict(bundle) for bundle in request.bundles])
group = request.to_placement_group()
ray.get(group.ready(), timeout=30)
print("placed", ray.available_resources().get("GPU", 0))
ray.util.remove_placement_group(group)
for wrong in (config(3), config(1, gpus=4)):
    started = time.monotonic()
    for attempt in (lambda: GRPO.default_resource_request(wrong), wrong.build_algo):
        try:
            attempt()
        except ValueError as error:
            print("refused", error)
    assert time.monotonic() - started < 30
ray.shutdown()
"""


def test_gpus_are_counted_placed_and_refused():
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SCRIPT]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [line for line in run.stdout.splitlines() if line.split(" ")[0] in ("bundles", "placed", "refused")]
    assert lines[0] == (
        "bundles [{'CPU': 0.1}, {'CPU': 0.5, 'GPU': 1.0}, {'CPU': 0.2, 'GPU': 1.0}, {'CPU': 0.2, 'GPU': 1.0}]"
    )
    assert lines[1] == "placed 0"
    assert len(lines) == 6
    for refused in lines[2:4]:
        assert "need 4 GPU (available 3)" in refused
    for refused in lines[4:6]:
        assert "need 5 GPU (available 3)" in refused
