"""What is private to a class stays in it, files and classes stay short, and settings have types."""

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ("rlhf_algos", "algorithms", "envs")
USERS = (*LIBRARY, "examples", "benchmarks", "tests")
SHIPPED = (*LIBRARY, "examples", "benchmarks")
LONGEST_FILE, LONGEST_CLASS = 300, 200
# A class whose own parts they are.
OWN = {"self", "cls", "mcs"}
# Private parts of RLlib's, PyTorch's and others' that a class of ours overrides or sets, under these names.
OF_OTHERS = {
    "_is_frozen": "RLlib's AlgorithmConfig",
    "_learner_class": "RLlib's AlgorithmConfig",
    "_is_online": "RLlib's AlgorithmConfig",
    "_storage": "Tune's Trainable",
    "_iteration": "Tune's Trainable",
    "_trial_info": "Tune's Trainable",
    "_last_result": "Tune's Trainable",
    "_replace": "a named tuple's public way to a changed copy",
}


def parsed(folders: tuple[str, ...], root: Path = ROOT) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root), ast.parse(path.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and not hasattr(builtins, name)


def defined_in(tree: ast.Module) -> set[str]:
    """Private names that a file gives to something: functions, classes, variables, and attributes of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def is_own(owner: ast.expr) -> bool:
    """`self`, `cls`, `super()` and `type(self)`."""
    if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name):
        of_self = owner.func.id == "type" and len(owner.args) == 1 and is_own(owner.args[0])
        return owner.func.id == "super" or of_self
    return isinstance(owner, ast.Name) and owner.id in OWN


def uses_of(tree: ast.Module, private: set[str]) -> Iterator[tuple[int, str]]:
    """Line and text of every use of a private name through something that is not the class itself.

    A class may use those of another object of its own: `other._x` in a method of the class that defines `_x`.
    """
    inside: dict[ast.AST, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            own = defined_in(ast.Module([node], []))
            for below in ast.walk(node):
                inside[below] = inside.get(below, set()) | own
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in private and not is_own(node.value):
            if node.attr not in inside.get(node, set()):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlhf_algos"):
            yield from ((node.lineno, f"import {a.name}") for a in node.names if is_private(a.name))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "setattr":
            for argument in node.args:
                text = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(text, str) and text.rpartition(".")[2] in private:
                    yield node.lineno, ast.unparse(node)


def private_uses(root: Path = ROOT) -> list[str]:
    private = set().union(*(defined_in(tree) for _, tree in parsed(LIBRARY, root))) - set(OF_OTHERS)
    return [
        f"{path}:{line}: {text}" for path, tree in parsed(USERS, root) for line, text in sorted(uses_of(tree, private))
    ]


def test_no_private_member_of_ours_is_used_from_outside():
    found = private_uses()
    assert found == [], f"{len(found)} uses:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("def test(thing):\n    assert thing._kept == 1", ["thing._kept"]),
        ("def test(thing):\n    thing.other._kept = 1", ["thing.other._kept"]),
        ("monkeypatch.setattr(Thing, '_kept', 1)", ["monkeypatch.setattr(Thing, '_kept', 1)"]),
        ("monkeypatch.setattr('rlhf_algos.thing.Thing._kept', 1)", ["monkeypatch.setattr('rlhf_algos.thing.Thing._"]),
        ("from rlhf_algos.thing import _helper", ["import _helper"]),
        ("class Mine(Thing):\n    def own(self):\n        return self._kept, super()._kept, type(self)._kept", []),
        ("def test(thing):\n    return thing.kept, thing.__dict__, thing._of_torch", []),
        ("class Own:\n    def __eq__(self, other):\n        self._kept = other._kept", []),
    ],
)
def test_such_a_use_is_found(tmp_path, source, uses):
    for folder in USERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "rlhf_algos" / "thing.py").write_text(
        "def _helper(): pass\nclass Thing:\n    def __init__(self):\n        self._kept = 0"
    )
    (tmp_path / "tests" / "test_thing.py").write_text(source)
    found = private_uses(tmp_path)
    assert len(found) == len(uses)
    assert all(text in line for line, text in zip(found, uses, strict=True))


def test_no_file_is_long():
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path, _ in parsed(SHIPPED)}
    assert {str(path): length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_class_is_long():
    found = {
        f"{path}: {node.name}": node.end_lineno - node.lineno + 1
        for path, tree in parsed(SHIPPED)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.end_lineno - node.lineno >= LONGEST_CLASS
    }
    assert found == {}


def test_no_part_below_the_algorithms_takes_a_configuration_of_any_kind():
    """What it reads is a type of its own: RolloutSettings, LearnerSettings, ..."""
    # Commands stand above the algorithms: they get whichever configuration a file names.
    found = [
        f"{path}:{node.lineno}: {node.name}({argument.arg}: {ast.unparse(argument.annotation)})"
        for path, tree in parsed(("rlhf_algos",))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.arg == "config" and argument.annotation is not None and ast.unparse(argument.annotation) == "Any"
        if path.parts[1] != "commands"
    ]
    assert found == []
