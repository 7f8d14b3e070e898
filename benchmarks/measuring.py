"""Time and peak memory of a piece of code, for the benchmarks that compare variants of one.

Every measurement is a fresh process, so that no allocator or thread pool remembers another variant. Variants alternate,
every other round backwards, so that a drift of the machine's load favours nobody.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Sample = dict[str, float]


def memory(field: str) -> float:
    """A field of this process's status in MiB, such as VmRSS (now) or VmHWM (peak)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status; this benchmark needs Linux")


def measure(work: Callable[[], object], clock: str) -> Sample:
    """Seconds of ``work``, and how far it raised the resident memory above what is there now, at its peak."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the kernel's mark of the peak
    before, start = memory("VmRSS"), CLOCKS[clock]()
    work()
    seconds = CLOCKS[clock]() - start
    return {"seconds": seconds, "mebibytes": memory("VmHWM") - before}


def in_fresh_process(script: str, arguments: Sequence[str], threads: int) -> dict[str, float]:
    """What the script prints as JSON when run with these arguments."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def alternate(variants: Sequence[str], rounds: int, sample: Callable[[str], Sample]) -> dict[str, list[Sample]]:
    """``rounds`` samples of each variant, taken in turn."""
    samples: dict[str, list[Sample]] = {variant: [] for variant in variants}
    for round_number in range(rounds):
        for variant in variants if round_number % 2 == 0 else variants[::-1]:
            taken = sample(variant)
            samples[variant].append(taken)
            print(
                f"round {round_number} {variant:26} {taken['seconds']:6.2f} s {taken['mebibytes']:6.0f} MiB",
                file=sys.stderr,
                flush=True,
            )
    return samples


def medians(samples: dict[str, list[Sample]]) -> dict[str, Sample]:
    """The median of each quantity over the rounds, for each variant."""
    return {
        variant: {key: statistics.median(sample[key] for sample in taken) for key in taken[0]}
        for variant, taken in samples.items()
    }


def sizes(options: Any, names: Sequence[str]) -> list[str]:
    """The options of these names as arguments of a command line; those that are None are left out."""
    values = {name: getattr(options, name.replace("-", "_")) for name in names}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]
