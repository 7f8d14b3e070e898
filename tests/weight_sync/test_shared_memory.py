"""Weights through shared memory: exact, named, and never half."""

import json
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_algos.weight_sync import SharedMemory, check_layout
from rlhf_algos.weight_sync.shared_memory import read_weights, write_weights


@pytest.fixture
def shared(tmp_path):
    weights = SharedMemory(tmp_path)
    yield weights
    weights.close()
    assert not weights.folder.exists()


def test_a_copy_sends_and_receives_and_owns_nothing(shared):
    learner, actor = (pickle.loads(pickle.dumps(shared)) for _ in range(2))
    learner.send({"a": torch.arange(3.0)}, 4)
    assert actor.receive(4)["a"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(FileNotFoundError, match=r"weights-5\.safetensors is not visible here"):
        actor.receive(5)
    learner.close(), actor.close()
    del learner, actor
    assert shared.receive(4)["a"].tolist() == [0.0, 1.0, 2.0]
    shared.path(4).rename(shared.path(6))
    with pytest.raises(ValueError, match="holds the weights of version 4"):
        shared.receive(6)


def test_tensors_come_back_bit_for_bit(shared):
    weights = {
        "a.weight": torch.randn(3, 4),
        "b": torch.randn(5).bfloat16(),
        "scalar": torch.tensor(2.5),
        "transposed": torch.arange(6.0).view(2, 3).T,
        "empty": torch.zeros(0, 3),
    }
    size = write_weights(shared.path(7), weights, 7)
    found, version = read_weights(shared.path(7))
    assert version == 7
    assert list(found) == list(weights)
    assert size == sum(t.numel() * t.element_size() for t in weights.values())
    for name, tensor in weights.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@given(shapes=st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=8))
def test_any_shapes_come_back(tmp_path_factory, shapes):
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    weights = {f"t{i}": torch.randn(shape) for i, shape in enumerate(shapes)}
    write_weights(path, weights, 1)
    found, _ = read_weights(path)
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_only_the_newest_version_is_kept(shared):
    for version in (1, 2, 3):
        write_weights(shared.path(version), {"a": torch.ones(2)}, version)
    shared.remove_older(3)
    assert [file.name for file in shared.folder.glob("weights-*")] == ["weights-3.safetensors"]


def test_the_folder_is_private_to_the_user(shared):
    assert shared.folder.stat().st_mode & 0o077 == 0


def test_an_invisible_file_says_why(tmp_path):
    with pytest.raises(FileNotFoundError, match="rollout actors must run on the learners' machine"):
        read_weights(tmp_path / "nothing.safetensors")


def test_a_missing_shared_memory_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="Mount a tmpfs there"):
        SharedMemory(tmp_path / "nowhere")


def test_a_full_shared_memory_says_how_much_is_needed(shared, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(OSError, match="needs 0 MiB in .*, 0 MiB are free"):
        write_weights(shared.path(1), {"a": torch.ones(10)}, 1)
    assert not shared.path(1).exists()


EXPECTED = {"a.gate_proj.weight": (2, 3), "a.up_proj.weight": (2, 3), "norm": (4,)}


def test_equal_layouts_pass():
    check_layout(dict(EXPECTED), EXPECTED)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda layout: layout.pop("norm"), r"missing: norm\."),
        (lambda layout: layout.update(extra=(1,)), r"unexpected: extra\."),
        (lambda layout: layout.update(norm=(5,)), r"wrong shape: norm \(5,\) instead of \(4,\)\."),
        (
            lambda layout: layout.update({"a.gate_proj_weight": layout.pop("a.gate_proj.weight")}),
            r"missing: a\.gate_proj\.weight; unexpected: a\.gate_proj_weight \(renamed from a\.gate_proj\.weight\?\)",
        ),
    ],
)
def test_every_difference_is_named(change, message):
    layout = dict(EXPECTED)
    change(layout)
    with pytest.raises(ValueError, match=message):
        check_layout(layout, EXPECTED)


def test_fused_experts_are_split_in_the_checkpoint_order():
    """gate_up = arange over (2 experts, 4 rows, 3): gate is the first half of the rows, not every other row."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    config = Qwen3MoeConfig(
        vocab_size=8,
        hidden_size=3,
        num_hidden_layers=1,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
    )
    model = Qwen3MoeForCausalLM(config)
    fused = dict(model.named_parameters())
    name = "model.layers.0.mlp.experts.gate_up_proj"
    fused[name] = torch.arange(24.0).view(2, 4, 3)
    split = revert_weight_conversion(model, fused)
    prefix = "model.layers.0.mlp.experts.1."
    assert split[prefix + "gate_proj.weight"].tolist() == [[12, 13, 14], [15, 16, 17]]
    assert split[prefix + "up_proj.weight"].tolist() == [[18, 19, 20], [21, 22, 23]]
    assert name not in split and json.dumps(sorted(split))
