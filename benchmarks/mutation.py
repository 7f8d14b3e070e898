"""Are the formulas' tests able to fail? Plants one small fault at a time and runs the tests of that file.

    python benchmarks/mutation.py --json docs/data/mutation.json              # every mutant, half an hour or more
    python benchmarks/mutation.py --sample 150 --json docs/data/mutation.json # a random sample, the same for one --seed

Faults: an operator exchanged (plus and minus, times and divided, a comparison and its neighbour, and and or), a sign
or a negation dropped, a number changed, min and max or sum and mean exchanged, the branches of `torch.where` swapped,
a stop-gradient removed, the arguments of `clamp` swapped. Messages, annotations and docstrings are left alone. A mutant
is caught if a test fails or takes longer than --timeout. Exit status 1 if fewer than 95 % are caught.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LEAST_CAUGHT = 0.95

# The file with a formula, and the tests that know its numbers.
SUBJECTS = {
    "objectives/advantages.py": ["tests/objectives/test_advantages.py"],
    "objectives/policy_losses.py": ["tests/objectives/test_policy_losses.py"],
    "objectives/kl_penalty.py": ["tests/objectives/test_kl_penalty.py"],
    "objectives/mismatch.py": ["tests/objectives/test_mismatch.py"],
    "objectives/ratios.py": ["tests/objectives/test_ratios.py"],
    "objectives/reduction.py": ["tests/objectives/test_reduction.py"],
    "objectives/score_centering.py": ["tests/objectives/test_score_centering.py"],
    "objectives/oracle.py": ["tests/objectives/test_oracle.py", "tests/objectives/test_score_centering.py"],
    "objectives/chunked_logprobs.py": [
        "tests/objectives/test_chunked_logprobs.py",
        "tests/objectives/test_chunked_logprobs_contract.py",
    ],
    "objectives/chunked_projection.py": [
        "tests/objectives/test_chunked_logprobs.py",
        "tests/objectives/test_chunked_logprobs_contract.py",
    ],
    "corrections/corrector.py": ["tests/corrections"],
    "corrections/token_wise.py": ["tests/corrections"],
    "corrections/sequence_level.py": ["tests/corrections"],
    "corrections/metrics.py": ["tests/corrections"],
    "corrections/_bounds.py": ["tests/corrections"],
}

_EXCHANGED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_RENAMED = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "amin": "amax",
    "amax": "amin",
    "sum": "mean",
    "mean": "sum",
}
_STOP_GRADIENT = {"detach"}


@dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    file: str
    line: int
    change: str
    source: str


def mutants_of(file: str) -> Iterator[Mutant]:
    """All mutants of a file under rlhf_algos/."""
    text = (ROOT / "rlhf_algos" / file).read_text()
    tree = ast.parse(text)
    for node in list(_code(tree)):
        for change, mutate in list(_changes(node)):
            before = node.__class__, dict(node.__dict__)
            mutate(node)
            source = ast.unparse(tree)
            node.__class__ = before[0]
            node.__dict__.clear()
            node.__dict__.update(before[1])
            yield Mutant(file, node.lineno, change, source)


def _code(tree: ast.AST) -> Iterator[Any]:
    """Expressions that compute something: inside of functions, outside of messages and annotations."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        stack: list[ast.AST] = list(function.body)
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Raise | ast.JoinedStr | ast.FunctionDef | ast.Assert):
                continue
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                stack.append(node.value)
                continue
            if isinstance(node, ast.expr):
                yield node
            stack.extend(ast.iter_child_nodes(node))


def _changes(node: Any) -> Iterator[tuple[str, Any]]:
    """What can be done to a node: a description, and a function that does it in place."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _EXCHANGED:
        new = _EXCHANGED[type(node.op)]
        yield f"{type(node.op).__name__} -> {new.__name__}", lambda n: setattr(n, "op", new())
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _EXCHANGED:
        new = _EXCHANGED[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} -> {new.__name__}", lambda n: setattr(n, "ops", [new()])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        name = type(node.op).__name__
        yield f"{name} dropped", lambda n: _become(n, n.operand)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value
        yield f"{value} -> {value + 1}", lambda n: setattr(n, "value", value + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _call_changes(node)


def _call_changes(node: ast.Call) -> Iterator[tuple[str, Any]]:
    assert isinstance(node.func, ast.Attribute)
    name = node.func.attr
    if name in _RENAMED:
        yield f"{name} -> {_RENAMED[name]}", lambda n: setattr(n.func, "attr", _RENAMED[name])
    if name in _STOP_GRADIENT:
        yield f"{name} removed", lambda n: _become(n, n.func.value)
    if name == "where" and len(node.args) == 3:
        yield "branches of where swapped", lambda n: setattr(n, "args", [n.args[0], n.args[2], n.args[1]])
    if name == "clamp" and len(node.args) == 2:
        yield "bounds of clamp swapped", lambda n: setattr(n, "args", n.args[::-1])
    if name == "clamp" and len(node.keywords) == 1 and node.keywords[0].arg in ("min", "max"):
        other = {"min": "max", "max": "min"}[node.keywords[0].arg or ""]
        yield f"clamp -> {other}", lambda n: setattr(n, "keywords", [ast.keyword(other, n.keywords[0].value)])


def _become(node: Any, other: Any) -> None:
    """Turns `node` into `other`, in place: its parent keeps pointing at it."""
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update(other.__dict__)


def checkout(folder: Path) -> Path:
    """A copy of what the tests of formulas need."""
    for name in ("rlhf_algos", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "models"))
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    for name in ("algorithms", "envs", "examples", "docs"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "rlhf_algos" / "models", folder / "rlhf_algos" / "models")
    return folder


def is_caught(folder: Path, tests: list[str], timeout: int) -> bool:
    """Runs the tests in a fork of this process, which has the heavy imports done already."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(timeout)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        import pytest

        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests])
        os._exit(int(status))
    _, status = os.waitpid(child, 0)
    return status != 0


def main() -> int:
    """Runs all or some mutants and reports the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--sample", type=int, help="so many mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=300, help="seconds per mutant")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import torch

    torch.set_num_threads(1)
    mutants = [mutant for file in arguments.files for mutant in mutants_of(file)]
    total = len(mutants)
    if arguments.sample is not None:
        mutants = random.Random(arguments.seed).sample(mutants, min(arguments.sample, total))
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = checkout(Path(temporary))
        for file in sorted({mutant.file for mutant in mutants}):
            if is_caught(folder, SUBJECTS[file], arguments.timeout):
                raise SystemExit(
                    f"The tests of {file} fail, or take over {arguments.timeout} s, without any fault planted."
                )
        for number, mutant in enumerate(mutants, 1):
            target = folder / "rlhf_algos" / mutant.file
            original = target.read_text()
            started = time.monotonic()
            target.write_text(mutant.source)
            caught = is_caught(folder, SUBJECTS[mutant.file], arguments.timeout)
            target.write_text(original)
            if not caught:
                survivors.append(mutant)
            took = time.monotonic() - started
            verdict = "caught" if caught else "SURVIVED"
            print(
                f"{number}/{len(mutants)} {verdict:8s} {mutant.file}:{mutant.line} {mutant.change} ({took:.0f} s)",
                flush=True,
            )
    share = 1 - len(survivors) / len(mutants)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught ({share:.1%}), out of {total} possible mutants")
    if arguments.json:
        rows = [{"file": m.file, "line": m.line, "change": m.change} for m in survivors]
        result = {"mutants": len(mutants), "possible": total, "caught_share": share, "survivors": rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if share >= LEAST_CAUGHT else 1


if __name__ == "__main__":
    sys.exit(main())
