"""Who may import whom: the layers point in one direction, and each heavy engine is imported in one place."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("rlhf_algos", "algorithms", "envs", "examples", "benchmarks", "tests")

# Which of our parts a part may import, itself apart.
ENGINE = {
    "batch",
    "objectives",
    "corrections",
    "routing_replay",
    "weight_sync",
    "envs",
    "rollout",
    "learner",
    "plugins",
}
MAY_IMPORT = {
    "batch": {"batch_file", "sampled_with"},
    "batch_file": {"sampled_with"},
    "sampled_with": set(),
    "objectives": set(),
    "models": set(),
    "metrics": set(),
    "report": {"metrics", "runs"},
    "runs": {"metrics"},
    "owned_folders": set(),
    "local_ray": set(),
    "importing": set(),
    "engine_arguments": set(),
    "doctor": {"owned_folders"},
    "cli": {"commands"},
    "__main__": {"cli"},
    "plugins": set(),
    "corrections": {"objectives", "plugins"},
    "routing_replay": {"batch", "plugins"},
    "weight_sync": {"batch", "owned_folders", "plugins"},
    "envs": {"batch"},
    "rollout": {"batch", "envs", "routing_replay", "models", "weight_sync", "importing"},
    "learner": {
        "batch",
        "objectives",
        "corrections",
        "routing_replay",
        "models",
        "weight_sync",
        "importing",
        "metrics",
    },
    "driver": {"batch", "envs", "local_ray", "metrics", "models", "objectives", "rollout", "weight_sync"},
    "algorithms": ENGINE | {"driver", "models", "engine_arguments", "owned_folders"},
    "analysis": {
        "algorithms",
        "driver",
        "batch",
        "corrections",
        "envs",
        "metrics",
        "objectives",
        "plugins",
        "routing_replay",
    },
    "commands": {
        "doctor",
        "algorithms",
        "analysis",
        "batch",
        "driver",
        "metrics",
        "plugins",
        "report",
        "runs",
        "routing_replay",
        "local_ray",
        "engine_arguments",
    },
}
# `rollout` and `driver` for benchmarks that measure one part by itself, `cli` for an example that is a command with
# other values.
PUBLIC = {
    "algorithms",
    "analysis",
    "batch",
    "cli",
    "corrections",
    "driver",
    "envs",
    "local_ray",
    "metrics",
    "models",
    "objectives",
    "report",
    "rollout",
    "routing_replay",
    "runs",
    "weight_sync",
}
# `ray.rllib.algorithms` also holds AlgorithmConfig, the type of an argument of RLlib's runners and learners.
ARGUMENT_TYPES = "ray.rllib.algorithms.algorithm_config"
ONLY_IN = {"vllm": "rollout", "deepspeed": "learner", "ray.rllib.algorithms": "algorithms"}


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Full names of what a file imports, anywhere in it; `from a import b` counts as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in {"import_module", "__import__"}:
                yield str(node.args[0].value)


def package_and_part(path: Path) -> tuple[str, str | None]:
    """The dotted package a file lies in, and which part of the library it is (None outside of it)."""
    parts = list(path.parts[:-1])
    if parts[0] in {"algorithms", "envs"}:
        parts = ["rlhf_algos", *parts]
    if parts[0] != "rlhf_algos":
        return ".".join(parts), None
    return ".".join(parts), parts[1] if len(parts) > 1 else path.stem


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def faults_of(path: Path, source: str) -> Iterator[str]:
    """Every import of one file (path relative to the root) that isn't allowed."""
    package, part = package_and_part(path)
    for module in imported_modules(ast.parse(source), package):
        names = module.split(".")
        if names[0] in {"envs", "algorithms"}:
            yield f"{path}: imports {module}; write rlhf_algos.{module}, this form makes a second copy"
        for heavy, place in ONLY_IN.items():
            if path.parts[0] != "tests" and is_within(module, heavy) and part != place:
                if is_within(module, ARGUMENT_TYPES):
                    continue
                yield f"{path}: imports {module}, allowed only in {place}"
        if names[0] != "rlhf_algos" or len(names) == 1 or names[1] == "__version__":
            continue
        if part is None and path.parts[0] != "tests" and (names[1] not in PUBLIC or "_" in {n[0] for n in names}):
            yield f"{path}: imports {module}; examples and benchmarks use public names only"
        if part not in {None, "__init__"} and names[1] not in MAY_IMPORT[part] | {part}:
            allowed = sorted(MAY_IMPORT[part]) or "nothing"
            yield f"{path}: {part} imports {module}, it may only import {allowed}"


def faults(root: Path) -> list[str]:
    """The faults of every Python file under the folders of a checkout."""
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            found += faults_of(path.relative_to(root), path.read_text())
    return found


def test_this_repository_keeps_its_layers():
    assert faults(ROOT) == []


def files_of(module: str) -> Iterator[Path]:
    """The files of ours that run when a module, or a name in one, is imported: its own and those of its packages."""
    names = module.split(".")
    for count in range(1, len(names) + 1):
        parts = names[1:count] if names[1:2] in (["algorithms"], ["envs"]) else names[:count]
        for file in (Path(*parts, "__init__.py"), Path(*parts).with_suffix(".py") if parts else Path()):
            if names[0] == "rlhf_algos" and (ROOT / file).is_file():
                yield file


def needed_modules(path: Path) -> set[str]:
    """Everything that a file of ours imports, directly or through other files of ours."""
    found, waiting, seen = set[str](), {path}, set[Path]()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        modules = set(imported_modules(ast.parse((ROOT / path).read_text()), package_and_part(path)[0]))
        found |= modules
        waiting |= {file for module in modules for file in files_of(module)} - seen
    return found


@pytest.mark.parametrize("file", ["player.py", "stages.py", "settings.py", "environments.py"])
def test_episodes_are_played_without_vllm_and_ray(file):
    modules = needed_modules(Path("rlhf_algos/rollout", file))
    assert any(is_within(module, "rlhf_algos.envs") for module in modules)
    assert [module for module in modules if module.split(".")[0] in ("vllm", "ray")] == []
    assert any(is_within(module, "vllm") for module in needed_modules(Path("rlhf_algos/rollout/vllm_env_runner.py")))


def test_every_part_of_the_library_has_a_rule():
    parts = {path.stem for path in (ROOT / "rlhf_algos").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__init__", "__pycache__"} <= set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("examples/demo.py", "import envs", "second copy"),
        ("rlhf_algos/rollout/a.py", "from envs.addition import Addition", "second copy"),
        ("tests/test_a.py", "def f():\n    import algorithms.grpo", "second copy"),
        ("rlhf_algos/learner/a.py", "from vllm import LLM", "allowed only in rollout"),
        ("rlhf_algos/rollout/a.py", "import deepspeed.ops", "allowed only in learner"),
        ("rlhf_algos/cli.py", "import importlib\nimportlib.import_module('vllm')", "allowed only in rollout"),
        ("envs/a.py", "from ray.rllib.algorithms.algorithm import Algorithm", "allowed only in algorithms"),
        (
            "rlhf_algos/objectives/a.py",
            "from rlhf_algos.batch import RolloutBatch",
            "may only import nothing",
        ),
        ("rlhf_algos/objectives/a.py", "from rlhf_algos import batch", "may only import nothing"),
        ("rlhf_algos/objectives/a.py", "from .. import batch", "may only import nothing"),
        ("rlhf_algos/objectives/a.py", "from ..corrections import TIS", "may only import nothing"),
        ("envs/a.py", "from rlhf_algos.rollout import VLLMEnvRunner", "may only import ['batch']"),
        ("rlhf_algos/batch.py", "import rlhf_algos.envs", "may only import ['batch_file', 'sampled_with']"),
        ("examples/a.py", "from rlhf_algos.learner import DeepSpeedLearner", "public names only"),
        ("benchmarks/a.py", "from rlhf_algos.objectives._checks import require_flat", "public names only"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, path, source, message):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source)

    (fault,) = faults(tmp_path)

    assert fault.startswith(path)
    assert message in fault


def test_importing_the_package_loads_no_engine(tmp_path):
    code = (
        "import sys, rlhf_algos, rlhf_algos.cli, rlhf_algos.doctor\n"
        "heavy = ('torch', 'vllm', 'deepspeed', 'ray', 'transformers', 'numpy')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == "[]"
