"""The names of vLLM's engine arguments, read without importing vLLM."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path


@cache
def vllm_engine_arguments() -> list[str]:
    """Fields of `vllm.EngineArgs`; empty if vLLM is not installed or its source looks different.

    Importing vLLM takes many seconds and starts its platform detection, for names that stand in one file.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return []
    source = Path(next(iter(spec.submodule_search_locations))) / "engine" / "arg_utils.py"
    if not source.is_file():
        return []
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            targets = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            return [name for name in names if not name.startswith("_")]
    return []
