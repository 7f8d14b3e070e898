"""How long `build_algo` takes, against a checkout of another commit, in turns on the same machine.

    python benchmarks/start_up.py --other ../old-checkout --json docs/data/start_up.json

Each start is a process of its own, with the code and the environment (`.venv`) of its checkout. The time of
`build_algo` is from the call until the algorithm could train: Ray, a rollout actor with its vLLM engine, a learner,
first weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
START = """
import json, time
start = time.perf_counter()
from rlhf_algos.algorithms.grpo import GRPOConfig
imported = time.perf_counter()
config = GRPOConfig().environment("rlhf_algos/Addition-v0", env_config={"digits": 2}).vllm(max_model_len=64)
algorithm = config.build_algo()
built = time.perf_counter()
algorithm.stop()
print("TIMES", json.dumps({"import": imported - start, "build_algo": built - imported}))
"""


def measure(checkout: Path) -> dict[str, float]:
    """Seconds of one start with the code of a checkout."""
    run = subprocess.run(
        [str(checkout / ".venv" / "bin" / "python"), "-c", START],
        cwd=checkout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("TIMES ")]
    if run.returncode or not lines:
        raise RuntimeError(f"The start in {checkout} failed:\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    times: dict[str, float] = json.loads(lines[0].removeprefix("TIMES "))
    return times


def commit(checkout: Path) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> dict[str, object]:
    """What the figures were made on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = sorted({line.partition(": ")[2] for line in lines if line.startswith("model name")})
    return {"cpu": ", ".join(models) or platform.processor(), "cores": len(os.sched_getaffinity(0))}


def main() -> int:
    """Measures in turns, prints a table and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, required=True, help="checkout to compare with, with a .venv of its own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    checkouts = {"other": arguments.other.resolve(), "this": HERE}
    times: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(1, arguments.rounds + 1):
        for name, checkout in checkouts.items():
            load = os.getloadavg()[0]
            times[name].append(measure(checkout) | {"load_before": load})
            shown = "  ".join(f"{key} {value:6.2f}" for key, value in times[name][-1].items())
            print(f"round {number}  {name:5}  {shown}", flush=True)
    medians = {
        name: {key: statistics.median(time[key] for time in of_name) for key in ("import", "build_algo")}
        for name, of_name in times.items()
    }
    ratio = medians["this"]["build_algo"] / medians["other"]["build_algo"]
    for name, of_name in medians.items():
        print(f"{name:5} {commit(checkouts[name]):20} build_algo {of_name['build_algo']:6.2f} s (median)")
    print(f"ratio {ratio:.2f}")
    if arguments.json:
        report = {
            "machine": machine(),
            "commits": {name: commit(checkout) for name, checkout in checkouts.items()},
            "seconds": times,
            "medians": medians,
            "ratio": ratio,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
