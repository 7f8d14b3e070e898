"""What the repository says in words: its pages, and the comments, docstrings and names of its code."""

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("rlhf_algos", "algorithms", "envs", "examples", "benchmarks", "tests", "docs", "requirements")


def files(*endings):
    found = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in endings]
    found += [file for file in ROOT.iterdir() if file.suffix in endings]
    return sorted(file for file in found if file.is_file() and "__pycache__" not in file.parts)


PAGES = files(".md")
CODE = files(".py")


def comments_and_docstrings(path):
    """Line number and text of each; what else a string says is data."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        # Also of a string that stands alone, as below an attribute.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def defined_names(path):
    """Line number and name of each function, class and argument, and each id of a parametrized test."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.keyword) and node.arg in ("id", "ids"):
            yield from ((n.lineno, str(n.value)) for n in ast.walk(node.value) if isinstance(n, ast.Constant))
