"""The file of a batch: one safetensors file whose header has the settings and the hash of the content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from rlhf_algos.sampled_with import SampledWith

FORMAT = "rlhf_algos.RolloutBatch"
FORMAT_VERSION = 3


@dataclass(frozen=True)
class BatchHeader:
    """What a saved batch says about itself before its arrays are read.

    Attributes:
        settings: of the batch; None if it has none.
        content_hash: of the batch that was saved.
        origin: as given to `save`; None if nothing was.
    """

    settings: SampledWith | None
    content_hash: str
    origin: dict[str, Any] | None


def content_hash(arrays: Mapping[str, np.ndarray], settings: SampledWith | None) -> str:
    """SHA-256 of the settings and of every array, its name, dtype and shape, in the order given."""
    digest = hashlib.sha256(_settings_text(settings).encode())
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], header: BatchHeader) -> None:
    """Writes the arrays, and the header as JSON; a file under its final name is always whole."""
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "settings": _settings_text(header.settings),
        "content_hash": header.content_hash,
    }
    if header.origin is not None:
        metadata["origin"] = json.dumps(header.origin, sort_keys=True)
    partial = path.with_name(path.name + ".partial")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, partial, metadata=metadata)
    partial.replace(path)


def read_arrays(path: Path, *, required: set[str], known: set[str]) -> dict[str, np.ndarray]:
    """The arrays of a saved batch.

    Args:
        path: of the file.
        required: names that must be there.
        known: names that may be.

    Raises:
        ValueError: if the file is truncated or of another kind, or has other arrays.
    """
    try:
        with safe_open(str(path), framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise _unreadable(path, error) from error
    if set(arrays) - known:
        raise ValueError(f"{path} has unknown fields {sorted(set(arrays) - known)}.")
    if required - set(arrays):
        raise ValueError(f"{path} lacks the fields {sorted(required - set(arrays))}.")
    return arrays


def read_header(path: str | Path) -> BatchHeader:
    """Reads what a saved batch says about itself, without its arrays.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is truncated, not a RolloutBatch, of another format version, or its header is incomplete.
    """
    path = Path(path)
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} is a safetensors file but not a RolloutBatch (its header says {header}).")
    version = header.get("format_version")
    if version != str(FORMAT_VERSION):
        why = (
            " (version 2 kept rewards as float32, and no conversion brings their digits back)" if version == "2" else ""
        )
        raise ValueError(
            f"{path} has format version {version}, this library reads version {FORMAT_VERSION}{why}; "
            "use the version of rlhf-algos that wrote it, or sample the batch again."
        )
    try:
        origin = json.loads(header["origin"]) if "origin" in header else None
        said, content = json.loads(header["settings"]), header["content_hash"]
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} has an incomplete or damaged header: {error!r}.") from error
    try:
        return BatchHeader(SampledWith.from_dict(said) if said else None, content, origin)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _settings_text(settings: SampledWith | None) -> str:
    return json.dumps({} if settings is None else settings.as_dict(), sort_keys=True)


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is not a readable safetensors file (truncated?): {error}")
