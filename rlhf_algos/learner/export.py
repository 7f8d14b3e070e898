"""Saving a trained model as a Hugging Face directory."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

from rlhf_algos.weight_sync.checkpoint_layout import SINGLE_FILE

logger = logging.getLogger(__name__)

# Weights of any format, their indices, adapters: what a new set of weights replaces.
_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.partial",
    "*.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.h5",
    "*.msgpack",
    "*.gguf",
    "*.onnx",
    "adapter_*",
    "consolidated*",
)
# Tokenizer, processor and code: of another model they would be read with the new one.
_OF_A_MODEL = (
    "tokenizer*",
    "added_tokens.json",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
    "*.tiktoken",
    "*.model",
    "*.jinja",
    "*processor_config.json",
    "*.py",
)
# What is written here, and what describes the model that was started from.
_NOT_COMPANIONS = ("config.json", "generation_config.json", "README.md", "MODEL_CARD.md", ".*")
_COMPANION_FOLDERS = ("additional_chat_templates",)
# Sub-folders of the target: while a model is written, and while it is moved into the old one's place.
_SAVING = ".saving-"
_REPLACING = ".replacing-"


def export_model(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], *, source: str, path: Path) -> None:
    """Writes config, generation config, weights, and everything else that the model was loaded with.

    Tensors are written in the dtype they have, which is the trainer's (`language_model(dtype=...)`, float32 by default,
    whatever the starting model's was), so that the saved model is exactly the trained one; `config.json` says the same
    dtype. Tokenizer and processor files and code files (`modeling_*.py`) are copied from where the model was loaded.

    Everything is written into a hidden sub-folder of `path`, which may be a mounted volume, and renamed into place when
    it is whole: a save that fails leaves the folder as it was. A folder that holds a model already, such as the one
    that training started from, gets this one in its place: weights, index, adapters, tokenizer and code that stand
    beside the old one's config are gone afterwards; other files and sub-folders stay.

    A process that is killed while it writes leaves the old model, and `.saving-*`. Killed while it renames, which takes
    milliseconds, it leaves a folder without `config.json`, which nothing loads, and `.replacing-*` with what is missing
    of both. The next save into the folder replaces either and removes both. Two saves into one folder at a time are not
    provided for.

    Args:
        model: gives the configs.
        tensors: weights under checkpoint names.
        source: the directory or hub id that the model was loaded from.
        path: directory to write; made if it does not exist.

    Raises:
        ValueError: if `path` is a file, or a folder with files in it that is no model's.
        FileNotFoundError: if `source` is gone.
    """
    # A link stays a link, to the new model.
    path = path.resolve()
    _require_replaceable(path)
    companions = _folder_of(source)
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    staging = Path(tempfile.mkdtemp(prefix=_SAVING, dir=path))
    try:
        written = staging / "new"
        written.mkdir()
        _write_model(model, tensors, written)
        # As any other file: safetensors makes its own for this user alone.
        (written / SINGLE_FILE).chmod(0o666 & ~_umask())
        copy_companions(companions, written)
        staging = staging.rename(path / staging.name.replace(_SAVING, _REPLACING))
        _replace(path, staging)
    except BaseException:
        # Not what could not be put back.
        if not (staging / "old").is_dir() or not any((staging / "old").iterdir()):
            shutil.rmtree(staging, ignore_errors=True)
        if is_new and not any(path.iterdir()):
            path.rmdir()
        raise
    # The model is whole: what can't be removed now (a network disk keeps open files) goes with the next save.
    shutil.rmtree(staging, ignore_errors=True)
    _remove_leftovers(path)


def _require_replaceable(path: Path) -> None:
    if not path.exists():
        return
    # The last is part of an empty disk.
    names = [] if path.is_file() else [file.name for file in path.iterdir() if file.name != "lost+found"]
    is_interrupted = any(name.startswith(_REPLACING) for name in names)
    is_empty = path.is_dir() and all(name.startswith(_SAVING) for name in names)
    if not (is_empty or is_interrupted or "config.json" in names):
        raise ValueError(
            f"{path} holds something that is no model (no config.json). Save into a new or empty folder, or into one "
            "with a model, which is replaced."
        )


def _remove_leftovers(path: Path) -> None:
    """Removes what saves that were killed have left in a folder, unless it may be all there is of a model."""
    prefixes = (_SAVING, _REPLACING) if (path / "config.json").exists() else (_SAVING,)
    for folder in list(path.iterdir()):
        if folder.name.startswith(prefixes):
            logger.warning("Removing %s, which an interrupted save has left.", folder)
            shutil.rmtree(folder, ignore_errors=True)


def _replace(path: Path, staging: Path) -> None:
    """Moves the old model's files into `staging/old` and those in `staging/new` into the folder; all, or none.

    `config.json` is the first that goes and the last that comes: without it nothing takes the folder for a model.
    """
    new, old = staging / "new", staging / "old"
    old.mkdir()
    coming = sorted((file.name for file in new.iterdir()), key="config.json".__eq__)
    going = [file.name for file in path.iterdir() if file.name in coming or _is_of_a_model(file)]
    going.sort(key="config.json".__ne__)
    moves = [(path / name, old / name) for name in going] + [(new / name, path / name) for name in coming]
    try:
        for source, target in moves:
            source.rename(target)
    except BaseException:
        for source, target in reversed(moves):
            if not os.path.lexists(source):
                target.rename(source)
        raise


def _is_of_a_model(file: Path) -> bool:
    """Whether a new model replaces it; of folders only those that are copied too, the others may hold anything."""
    if file.is_dir() and not file.is_symlink():
        return file.name in _COMPANION_FOLDERS
    return _matches(file.name, (*_WEIGHTS, *_OF_A_MODEL, "config.json", "generation_config.json"))


def _write_model(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    model.config.save_pretrained(folder)
    _use_own_code(folder / "config.json")
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / SINGLE_FILE, metadata={"format": "pt"})


def _use_own_code(config_file: Path) -> None:
    """Makes the config name the code files beside it, not those of the hub repository that it was loaded from."""
    config = json.loads(config_file.read_text())
    if "auto_map" not in config:
        return
    config["auto_map"] = {
        name: [_without_repository(each) for each in of] if isinstance(of, list) else _without_repository(of)
        for name, of in config["auto_map"].items()
    }
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _without_repository(reference: str | None) -> str | None:
    return reference if reference is None else reference.rpartition("--")[2]


def _folder_of(source: str) -> Path:
    if Path(source).is_dir():
        return Path(source)
    if Path(source).is_absolute():
        raise FileNotFoundError(
            f"{source}, which the model was loaded from, is gone: its tokenizer and code belong to a saved model. "
            "Put the folder back."
        )
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source, local_files_only=True))


def copy_companions(source: Path, folder: Path) -> None:
    """Tokenizer, processor, templates, code, licence: whatever stands beside the weights, known or not."""
    for file in source.iterdir():
        if file.is_file() and not _matches(file.name, _WEIGHTS + _NOT_COMPANIONS):
            shutil.copy(file, folder / file.name)
        elif file.is_dir() and file.name in _COMPANION_FOLDERS:
            shutil.copytree(file, folder / file.name)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _umask() -> int:
    # There is no way to read it without setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
