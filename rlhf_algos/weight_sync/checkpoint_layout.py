"""Names and shapes that a set of weights must have, taken from the checkpoint the sampler was started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from safetensors import safe_open

Layout = dict[str, tuple[int, ...]]

INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


def checkpoint_layout(model: str) -> Layout:
    """Name and shape of every tensor of a checkpoint.

    With a `model.safetensors.index.json` these are the tensors that it names, in the files it names for them; without
    one, those of `model.safetensors`. Other files beside them (Mistral's `consolidated.safetensors`, an adapter) are
    not the checkpoint.

    Args:
        model: a directory, or a hub id whose files are in the local cache.

    Raises:
        FileNotFoundError: if there is neither, or a file that the index names is not there.
        ValueError: if a tensor is not in the file that the index names for it.
    """
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(model, allow_patterns=["*.safetensors", INDEX], local_files_only=True))
    layout: Layout = {}
    for file, wanted in _files_of(folder).items():
        if not file.is_file():
            raise FileNotFoundError(f"{file} does not exist, but {folder / INDEX} names it.")
        with safe_open(str(file), framework="numpy") as tensors:
            found = list(tensors.keys())
            lacking = sorted(set(wanted or ()) - set(found))
            if lacking:
                raise ValueError(f"{file} does not hold {_first(lacking)}, as {folder / INDEX} says.")
            for name in wanted or found:
                layout[name] = tuple(tensors.get_slice(name).get_shape())
    return layout


def _files_of(folder: Path) -> dict[Path, list[str] | None]:
    """The files of a checkpoint and which of their tensors belong to it; None for all."""
    index = folder / INDEX
    if index.is_file():
        files: dict[Path, list[str] | None] = {}
        for name, file in json.loads(index.read_text())["weight_map"].items():
            names = files.setdefault(folder / file, [])
            assert names is not None
            names.append(name)
        return files
    single = folder / SINGLE_FILE
    if not single.is_file():
        there = sorted(file.name for file in folder.glob("*.safetensors"))
        raise FileNotFoundError(
            f"{folder} holds neither {INDEX} nor {SINGLE_FILE}"
            + (f", only {_first(there)}" if there else "")
            + "; save the model with transformers (save_pretrained writes safetensors)."
        )
    return {single: None}


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
