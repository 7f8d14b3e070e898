"""Saving a trained model as a Hugging Face directory."""

from __future__ import annotations

import json
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
_NOT_COMPANIONS = ("config.json", "generation_config.json", "README.md", ".*")
_COMPANION_FOLDERS = ("additional_chat_templates",)


def save_checkpoint(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], *, source: str, path: Path) -> None:
    """Writes config, generation config, weights, and everything else that the model was loaded with.

    Tensors are written in the dtype they have, which is the trainer's (`language_model(dtype=...)`, float32 by default,
    whatever the starting model's was), so that the saved model is exactly the trained one; `config.json` says the same
    dtype. Tokenizer and processor files and code files (`modeling_*.py`) are copied from where the model was loaded.

    Everything is written beside `path` and renamed into place when it is whole: a save that fails leaves the folder as
    it was. A folder that holds a model already, such as the one that training started from, gets this one in its place:
    weights, index, adapters, tokenizer and code of the old one are gone afterwards, files that are no model's are kept.

    Args:
        model: gives the configs.
        tensors: weights under checkpoint names.
        source: the directory or hub id that the model was loaded from.
        path: directory to write; made if it does not exist.

    Raises:
        ValueError: if `path` is a file, or a folder with files in it that is no model's.
    """
    # A link stays a link, to the new folder.
    path = path.resolve()
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / "config.json").is_file()):
        raise ValueError(
            f"{path} holds something that is no model (no config.json). Save into a new or empty folder, or into one "
            "with a model, which is replaced."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.saving-", dir=path.parent))
    try:
        _write_model(model, tensors, beside)
        # As any other folder and file: mkdtemp and safetensors make theirs for this user alone.
        beside.chmod(0o777 & ~_umask())
        (beside / SINGLE_FILE).chmod(0o666 & ~_umask())
        _copy_companions(_folder_of(source), beside)
        if path.is_dir():
            _keep_other_files(path, beside)
        _replace_folder(path, beside)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


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
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source, local_files_only=True))


def _copy_companions(source: Path, folder: Path) -> None:
    """Tokenizer, processor, templates, code, licence: whatever stands beside the weights, known or not."""
    for file in source.iterdir():
        if file.is_file() and not _matches(file.name, _WEIGHTS + _NOT_COMPANIONS):
            shutil.copy(file, folder / file.name)
        elif file.is_dir() and file.name in _COMPANION_FOLDERS:
            shutil.copytree(file, folder / file.name)


def _keep_other_files(old: Path, folder: Path) -> None:
    """Takes over what is no part of a model: notes, logs, a model card."""
    for file in old.iterdir():
        if (folder / file.name).exists() or _matches(file.name, _WEIGHTS + _OF_A_MODEL + ("generation_config.json",)):
            continue
        if file.is_dir() and not file.is_symlink():
            shutil.copytree(file, folder / file.name, symlinks=True, copy_function=_link)
        else:
            _link(file, folder / file.name)


def _link(source: str | Path, target: str | Path) -> str | Path:
    """The same file under another name, or a copy where the file system knows no such thing."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def _replace_folder(path: Path, new: Path) -> None:
    if not path.exists():
        new.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old-", dir=path.parent))
    # A folder may be renamed onto an empty one.
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _umask() -> int:
    # There is no way to read it without setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
