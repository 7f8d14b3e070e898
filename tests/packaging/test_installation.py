"""`make` and requirements/install.py: each target works first, nothing twice, failures are loud."""

import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ("Makefile", "setup.py", "requirements/install.py", "requirements/cpu.txt", "requirements/dev.txt")
LOCK = ROOT / "requirements" / "cpu.txt"


@pytest.fixture
def checkout(tmp_path):
    """A copy of what `make` looks at, all of the same age."""
    for file in FILES:
        target = tmp_path / file
        target.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, target)
        os.utime(target, (1_000_000, 1_000_000))
    return tmp_path


@pytest.fixture
def install():
    """requirements/install.py as a module."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "requirements" / "install.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["install"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["install"]


def planned(checkout, *arguments):
    """The commands that make would run."""
    command = ["make", "--dry-run", *arguments]
    env = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}}
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True).stdout


def stamp(checkout, age):
    file = checkout / ".venv" / ".installed"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    os.utime(file, (age, age))


@pytest.mark.parametrize(
    ("target", "command"),
    [("demo", ".venv/bin/python examples/demo.py"), ("test", ".venv/bin/pytest"), ("lint", "ruff check .")],
)
def test_each_target_sets_everything_up_when_it_is_the_first(checkout, target, command):
    commands = planned(checkout, target)
    assert commands.count("requirements/install.py --venv .venv") == 1
    assert commands.index("requirements/install.py") < commands.index(command)


@pytest.mark.parametrize("target", ["demo", "test", "lint", "learning", "doctor"])
def test_a_finished_installation_is_kept(checkout, target):
    stamp(checkout, age=2_000_000)
    assert "install.py --venv" not in planned(checkout, target)


@pytest.mark.parametrize("file", FILES[1:])
def test_a_change_of_what_was_installed_installs_again(checkout, file):
    stamp(checkout, age=2_000_000)
    os.utime(checkout / file, (3_000_000, 3_000_000))
    assert "install.py --venv" in planned(checkout, "test")


def test_an_environment_without_stamp_is_not_finished(checkout):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    assert "install.py --venv" in planned(checkout, "demo")


def test_the_python_can_be_named(checkout):
    assert "/opt/py/python3.11 requirements/install.py" in planned(checkout, "test", "PYTHON=/opt/py/python3.11")


def test_help_names_the_targets(checkout):
    shown = subprocess.run(["make"], cwd=checkout, capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "lint", "learning", "benchmarks", "clean"):
        assert f"make {target} " in shown


def test_another_python_is_refused_with_what_to_do(install):
    install.check_python((3, 11), "python")
    with pytest.raises(install.InstallError) as error:
        install.check_python((3, 12), "/usr/bin/python3")
    assert str(error.value) == (
        "rlhf-algos needs Python 3.11, and /usr/bin/python3 is Python 3.12. "
        "Install Python 3.11 and name it: make test PYTHON=/path/to/python3.11"
    )


class FakePip:
    """Stands for the subprocess module: keeps the commands, and fails those that contain a given text."""

    def __init__(self, failing):
        self.failing = failing
        self.commands = []

    def run(self, command, **kwargs):
        line = " ".join(str(part) for part in command)
        self.commands.append(line)
        status = 1 if any(text in line for text in self.failing) else 0
        return subprocess.CompletedProcess(command, status, "3 11", "")


@pytest.mark.parametrize(
    ("failing", "choice", "tries"),
    [
        ([], "torch==2.13.0+cpu, from where pip is configured to look", 1),
        (["--no-deps torch==2.13.0+cpu$"], "torch==2.13.0+cpu, from https://cpu.example/whl", 2),
        (["+cpu"], "torch==2.13.0 from the package index (runs on a CPU, several GB)", 3),
    ],
)
def test_torch_is_taken_from_the_first_place_that_has_it(install, monkeypatch, tmp_path, failing, choice, tries):
    pip = FakePip([])
    plain = pip.run

    # The mark $ means: only where the command ends with the text.
    def run(command, **kwargs):
        line = " ".join(str(part) for part in command)
        pip.failing = [line] if any(line.endswith(t[:-1]) if t[-1] == "$" else t in line for t in failing) else []
        return plain(command, **kwargs)

    monkeypatch.setattr(install.subprocess, "run", run)
    chosen = install.install_torch(install.Environment(tmp_path), "https://cpu.example/whl")
    assert chosen == choice
    assert len(pip.commands) == tries
    # Only the build that can't be loaded without its nvidia-* packages may bring dependencies.
    assert ["--no-deps" in command for command in pip.commands] == [True, True, False][:tries]


def test_no_torch_anywhere_is_an_error(install, monkeypatch, tmp_path):
    monkeypatch.setattr(install.subprocess, "run", FakePip(["torch=="]).run)
    with pytest.raises(install.InstallError, match=r"installing torch==2\.13\.0 failed \(exit status 1\)"):
        install.install_torch(install.Environment(tmp_path), "https://cpu.example/whl")


def test_unusable_companions_of_torch_are_removed(install, monkeypatch, tmp_path, capsys):
    pip = FakePip(["import torchvision", "show --quiet torchcodec"])
    monkeypatch.setattr(install.subprocess, "run", pip.run)
    install.remove_unusable(install.Environment(tmp_path))
    removed = [command.split()[-1] for command in pip.commands if "uninstall" in command]
    # torchvision can't be imported, triton can but has no device; torchaudio works, torchcodec isn't there.
    assert removed == ["torchvision", "triton"]
    assert "Removing torchvision" in capsys.readouterr().out


def test_a_failed_installation_is_started_over(install, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(install, "install_torch", lambda env, url: "no torch")
    folder = tmp_path / "env"
    arguments = ["install.py", "--venv", str(folder), "--lock"]

    monkeypatch.setattr(sys, "argv", [*arguments, str(tmp_path / "missing.txt")])
    assert install.main() == 1
    assert "missing.txt failed (exit status 1)" in capsys.readouterr().err
    assert not (folder / ".installed").exists()

    (folder / "half-unpacked").touch()
    (tmp_path / "empty.txt").touch()
    monkeypatch.setattr(sys, "argv", [*arguments, str(tmp_path / "empty.txt")])
    assert install.main() == 0
    assert "didn't finish; starting it over" in capsys.readouterr().out
    assert (folder / ".installed").exists()
    assert not (folder / "half-unpacked").exists()

    (folder / "kept").touch()
    assert install.main() == 0
    assert (folder / "kept").exists()


def test_an_environment_that_doctor_rejects_is_not_finished(install, monkeypatch, tmp_path):
    monkeypatch.setattr(install.subprocess, "run", FakePip(["rlhf-algos doctor"]).run)
    env = install.Environment(tmp_path)
    with pytest.raises(install.InstallError, match="the check of the environment failed"):
        install.install(env, [], Path(), "https://cpu.example/whl")
    assert not env.finished.exists()
    assert not env.unfinished.exists()  # the packages are complete: no need to install them again


def pins(lines):
    """name -> version of exact requirements, extras and markers left out."""
    exact = (line.split(";")[0].split("==") for line in lines if "==" in line.split(";")[0])
    return {name.split("[")[0].strip(): version.strip() for name, version in exact}


def test_installer_lock_and_metadata_agree(install):
    metadata = pins(requires("rlhf-algos"))
    lock = pins(LOCK.read_text().splitlines())
    assert metadata.pop("torch") == install.TORCH
    del metadata["vllm"]  # the extra cuda
    assert {name: lock[name] for name in metadata} == metadata


@pytest.mark.parametrize("file", ["requirements/cpu.txt", "requirements/dev.txt", "benchmarks/requirements-trl.txt"])
def test_no_lock_names_torch_or_what_breaks_beside_it(install, file):
    locked = pins((ROOT / file).read_text().splitlines())
    assert len(locked) > 10
    assert not locked.keys() & {"torch", *install.COMPANIONS}
