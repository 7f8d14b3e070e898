"""Names and shapes that a set of weights must have, taken from the checkpoint the sampler was started with."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from safetensors import safe_open

Layout = dict[str, tuple[int, ...]]


def checkpoint_layout(model: str) -> Layout:
    """Name and shape of every tensor in a model's safetensors files.

    Args:
        model: a directory, or a hub id whose files are in the local cache.

    Raises:
        FileNotFoundError: if there are no safetensors files.
    """
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(model, allow_patterns=["*.safetensors"], local_files_only=True))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no .safetensors files; convert the model's weights to safetensors.")
    layout: Layout = {}
    for file in files:
        with safe_open(str(file), framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                layout[name] = tuple(tensors.get_slice(name).get_shape())
    return layout


def check_layout(published: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises unless both have the same names and shapes.

    Raises:
        ValueError: names every missing, unexpected or misshapen tensor (the first five of each kind).
    """
    missing = [name for name in expected if name not in published]
    unexpected = [name for name in published if name not in expected]
    misshapen = [
        f"{name} {tuple(published[name])} instead of {tuple(expected[name])}"
        for name in expected
        if name in published and tuple(published[name]) != tuple(expected[name])
    ]
    problems = []
    if missing:
        problems.append(f"missing: {_first(missing)}")
    if unexpected:
        near = [f"{name}{_hint(name, missing)}" for name in unexpected[:5]]
        problems.append(f"unexpected: {_first(near, len(unexpected))}")
    if misshapen:
        problems.append(f"wrong shape: {_first(misshapen)}")
    if problems:
        raise ValueError("The published weights do not match the sampler's checkpoint; " + "; ".join(problems) + ".")


def _hint(name: str, candidates: list[str]) -> str:
    near = get_close_matches(name, candidates, 1, cutoff=0.8)
    return f" (renamed from {near[0]}?)" if near else ""


def _first(items: list[str], total: int | None = None) -> str:
    total = len(items) if total is None else total
    more = f" and {total - 5} more" if total > 5 else ""
    return ", ".join(items[:5]) + more
