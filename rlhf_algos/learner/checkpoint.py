"""Saving a trained model as a Hugging Face directory."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What belongs to the model besides its weights, taken over from where it was loaded.
_COMPANIONS = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.jinja", "*.model")


def save_checkpoint(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], *, source: str, path: Path) -> None:
    """Writes config, generation config, weights and the tokenizer's files.

    Args:
        model: gives the configs.
        tensors: weights under checkpoint names.
        source: the directory or hub id that the model was loaded from.
        path: directory to write; made if it does not exist.
    """
    path.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(path)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(path)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    partial = path / "model.safetensors.partial"
    save_file(contiguous, partial, metadata={"format": "pt"})
    partial.replace(path / "model.safetensors")
    folder = Path(source)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(source, allow_patterns=list(_COMPANIONS), local_files_only=True))
    for pattern in _COMPANIONS:
        for file in folder.glob(pattern):
            shutil.copy(file, path / file.name)
