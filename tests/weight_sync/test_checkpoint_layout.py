"""Which tensors a checkpoint has: those that its index names, or those of its single file."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rlhf_algos.weight_sync import checkpoint_layout


def write_shards(folder):
    save_file({"a": torch.ones(2, 3), "unused": torch.ones(1)}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(4)}, folder / "model-00002-of-00002.safetensors")
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def test_shards_are_those_of_the_index(tmp_path):
    """Mistral ships a second copy of the weights under other names, in one file beside the shards."""
    write_shards(tmp_path)
    save_file({"tok_embeddings.weight": torch.ones(2, 3)}, tmp_path / "consolidated.safetensors")
    assert checkpoint_layout(str(tmp_path)) == {"a": (2, 3), "b": (4,)}


def test_without_an_index_it_is_the_single_file(tmp_path):
    save_file({"a": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    save_file({"lora_A": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    save_file({"tok_embeddings.weight": torch.ones(2, 3)}, tmp_path / "consolidated.safetensors")
    assert checkpoint_layout(str(tmp_path)) == {"a": (2, 3)}


def test_a_folder_without_a_checkpoint_is_refused_with_what_is_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds neither model.safetensors.index.json nor model.safetensors;"):
        checkpoint_layout(str(tmp_path))
    save_file({"x": torch.ones(1)}, tmp_path / "consolidated.safetensors")
    with pytest.raises(FileNotFoundError, match=r"nor model.safetensors, only consolidated.safetensors; save"):
        checkpoint_layout(str(tmp_path))


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path):
    write_shards(tmp_path)
    save_file({"c": torch.ones(4)}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"model-00002-of-00002.safetensors does not hold b, as .*index.json says"):
        checkpoint_layout(str(tmp_path))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00002.safetensors does not exist, but .*index.json"):
        checkpoint_layout(str(tmp_path))
