"""The package as users get it: editable, and as a wheel used from another folder than the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPORT_ALL = "import rlhf_algos, rlhf_algos.algorithms, rlhf_algos.envs"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """A wheel built from a copy, so that neither old build folders nor the checkout are touched."""
    source = tmp_path_factory.mktemp("source")
    for folder in ("rlhf_algos", "algorithms", "envs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    # Sub-packages of the mapped folders need the prefix: two levels, so that a missing one shows.
    for name in ("probe", "probe/inner"):
        (source / "algorithms" / name).mkdir()
        (source / "algorithms" / name / "__init__.py").touch()
    target = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        target,
        source,
    ]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed_wheel(wheel, tmp_path_factory):
    """The folder that the wheel was installed into."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, wheel]
    subprocess.run(command, check=True, capture_output=True)
    return target


def run_python(code, folder, path=""):
    """What `code` prints when it runs in `folder`, with `path` in front of the installed packages."""
    env = {**os.environ, "PYTHONPATH": str(path), "RAY_DEDUP_LOGS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def test_the_wheel_holds_every_module_under_its_mapped_name(wheel):
    expected = {"rlhf_algos/algorithms/probe/__init__.py", "rlhf_algos/algorithms/probe/inner/__init__.py"}
    for folder, prefix in (("rlhf_algos", ""), ("algorithms", "rlhf_algos/"), ("envs", "rlhf_algos/")):
        expected |= {prefix + str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert names == expected


def test_the_wheel_ships_the_model_the_types_and_the_license(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    model = {str(path.relative_to(ROOT)) for path in (ROOT / "rlhf_algos/models/tiny_moe").iterdir()}
    assert {"rlhf_algos/models/tiny_moe/config.json", "rlhf_algos/models/tiny_moe/model.safetensors"} <= model
    assert model | {"rlhf_algos/py.typed"} <= names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_is_imported_from_another_folder(installed_wheel, tmp_path):
    code = f"{IMPORT_ALL}\nprint(rlhf_algos.__file__, rlhf_algos.algorithms.__file__, rlhf_algos.envs.__file__)"
    files = run_python(code, tmp_path, installed_wheel)
    assert files == [
        str(installed_wheel / "rlhf_algos" / name)
        for name in ("__init__.py", "algorithms/__init__.py", "envs/__init__.py")
    ]


def test_the_editable_installation_is_imported_from_another_folder(tmp_path):
    code = f"{IMPORT_ALL}\nprint(rlhf_algos.algorithms.__file__, rlhf_algos.envs.__file__)"
    files = run_python(code, tmp_path)
    assert files == [str(ROOT / "algorithms/__init__.py"), str(ROOT / "envs/__init__.py")]


@pytest.mark.parametrize("kind", ["editable", "wheel"])
def test_ray_workers_import_the_package(kind, installed_wheel, tmp_path):
    code = f"""
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
@ray.remote
def files():
    {IMPORT_ALL}
    return rlhf_algos.algorithms.__file__, rlhf_algos.envs.__file__
print(*ray.get(files.remote()))
"""
    shown = run_python(code, tmp_path, installed_wheel if kind == "wheel" else "")
    home = installed_wheel / "rlhf_algos" if kind == "wheel" else ROOT
    assert shown == [str(home / "algorithms/__init__.py"), str(home / "envs/__init__.py")]
