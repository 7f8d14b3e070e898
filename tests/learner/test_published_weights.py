"""What the learner publishes is what stands in the checkpoint: parameters, buffers, and copies of tied tensors."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from benchmarks.architecture_models import write_model
from rlhf_algos.driver.calls import on_learners
from rlhf_algos.weight_sync import checkpoint_layout
from tests.learner.conftest import make_batch, make_config

BIAS = torch.tensor([0.0, 5, 0, 0, 0, 0, 0, 0])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models with a correction bias that decides routes, and one whose checkpoint holds its tied head too."""
    root = tmp_path_factory.mktemp("models")
    found = {}
    for name in ("glm4_moe", "deepseek_v3"):
        found[name] = write_model(root / name, name, tied=False, vocabulary=263)
        tensors = load_file(found[name] / "model.safetensors")
        tensors["model.layers.1.mlp.gate.e_score_correction_bias"] = BIAS
        save_file(tensors, found[name] / "model.safetensors", metadata={"format": "pt"})
    found["tied"] = write_model(root / "tied", "llama", tied=True, vocabulary=320)
    found["copy"] = root / "copy"
    shutil.copytree(found["tied"], found["copy"])
    tensors = load_file(found["copy"] / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, found["copy"] / "model.safetensors", metadata={"format": "pt"})
    return found


def published(learner):
    return {name: tensor.clone() for name, tensor in learner.checkpoint_tensors().items()}


@pytest.mark.parametrize("zero_stage, num_learners", [(1, 1), (3, 2)])
@pytest.mark.parametrize("model", ["glm4_moe", "deepseek_v3", "tied", "copy"])
def test_what_is_published_is_what_stands_in_the_checkpoint(learner_pool, folders, model, zero_stage, num_learners):
    group = learner_pool(make_config(folders[model], zero_stage=zero_stage, num_learners=num_learners, lr=0.0))
    tensors = on_learners(group, published)[0]
    stored = load_file(folders[model] / "model.safetensors")
    assert set(tensors) == set(stored) == set(checkpoint_layout(str(folders[model])))
    for name, tensor in tensors.items():
        assert torch.equal(tensor, stored[name]), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["glm4_moe", "deepseek_v3"])
def test_a_correction_bias_survives_training_and_saving_exactly(learner_pool, folders, tmp_path, model, dtype):
    """In float32, whatever the trainer's dtype: it decides which experts are taken."""
    group = learner_pool(make_config(folders[model], zero_stage=3, num_learners=2, dtype=dtype))
    batch = make_batch([6, 5, 7, 4])
    on_learners(group, lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0))
    on_learners(group, lambda learner: learner.save_pretrained(str(tmp_path / "saved")))
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert torch.equal(saved["model.layers.1.mlp.gate.e_score_correction_bias"], BIAS)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == dtype
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype="auto")
    assert torch.equal(loaded.get_buffer("model.layers.1.mlp.gate.e_score_correction_bias"), BIAS)
    started_from = AutoModelForCausalLM.from_pretrained(folders[model], dtype="auto")
    ids = torch.arange(20, 40)[None]
    with torch.no_grad():
        assert (loaded(ids).logits.float() - started_from(ids).logits).abs().max() > 1e-3


def test_what_is_published_does_not_change_when_the_starting_folder_does(learner_pool, folders, tmp_path):
    """The actors keep the layout that they started with; a save in place writes another one, with one tied tensor."""
    place = shutil.copytree(folders["copy"], tmp_path / "place")
    started_with = checkpoint_layout(str(place))
    group = learner_pool(make_config(place, lr=0.0))
    on_learners(group, lambda learner: learner.save_pretrained(str(place)))
    assert "lm_head.weight" not in checkpoint_layout(str(place))
    assert set(on_learners(group, published)[0]) == set(started_with)
    place.rename(tmp_path / "moved")
    assert set(on_learners(group, published)[0]) == set(started_with)
    # The same learner process, another model.
    group = learner_pool(make_config(folders["tied"], lr=0.0))
    assert set(on_learners(group, published)[0]) == set(checkpoint_layout(str(folders["tied"])))


def test_a_tied_model_is_saved_with_one_tensor(learner_pool, folders, tmp_path):
    group = learner_pool(make_config(folders["copy"]))
    on_learners(group, lambda learner: learner.save_pretrained(str(tmp_path / "saved")))
    assert "lm_head.weight" not in checkpoint_layout(str(tmp_path / "saved"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
