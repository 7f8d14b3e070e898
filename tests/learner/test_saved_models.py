"""What a saved model's folder holds, and that a save never leaves half a model."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM, LlamaConfig, LlamaForCausalLM

from rlhf_algos.learner import export
from rlhf_algos.learner.export import export_model
from rlhf_algos.learner.weights import persistent_buffers

COMPANIONS = {
    "added_tokens.json": "{}",
    "configuration_odd.py": (
        "from transformers import LlamaConfig\n\n\nclass OddConfig(LlamaConfig):\n    model_type = 'odd'\n"
    ),
    "modeling_odd.py": (
        "from transformers import LlamaForCausalLM\n\nfrom .configuration_odd import OddConfig\n\n\n"
        "class OddForCausalLM(LlamaForCausalLM):\n    config_class = OddConfig\n"
    ),
    "preprocessor_config.json": "{}",
    "tokenization_odd.py": "",
    "tokenizer.json": "{}",
    "unheard_of.vocabulary": "a",
    "words.tiktoken": "YQ== 0",
    "LICENSE": "free",
}


def tiny_llama(**overrides):
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, num_key_value_heads=1, **overrides))


def trained(model):
    """New weights for a model, as a learner would hand them over."""
    return {name: parameter.detach() + 1 for name, parameter in model.named_parameters()}


def files(folder):
    return {file.name for file in folder.iterdir()}


def saved(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.fixture
def source(tmp_path):
    """A model with code of its own, and every kind of file that may stand beside weights."""
    folder = tmp_path / "source"
    tiny_llama().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "odd", "architectures": ["OddForCausalLM"]}
    config["auto_map"] = {
        "AutoConfig": "configuration_odd.OddConfig",
        "AutoModelForCausalLM": "modeling_odd.OddForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name, text in COMPANIONS.items():
        (folder / name).write_text(text)
    return folder


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def test_everything_but_weights_comes_along_and_the_copy_loads_by_itself(source, tmp_path):
    model = load(source)
    (source / "consolidated.safetensors").write_text("no")
    (source / "model.safetensors.index.json").write_text("{}")
    tensors = trained(model)
    target = tmp_path / "elsewhere" / "copy"
    export_model(model, tensors, source=str(source), path=target)
    assert files(target) == set(COMPANIONS) | {"config.json", "generation_config.json", "model.safetensors"}
    (tmp_path / "source").rename(tmp_path / "gone")
    loaded = load(target)
    assert type(loaded).__name__ == "OddForCausalLM"
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, tensors[name]), name


def test_code_is_that_of_the_folder_also_if_the_model_came_from_the_hub(source, tmp_path):
    model = load(source)
    model.config.auto_map = {
        "AutoConfig": "them/theirs--configuration_odd.OddConfig",
        "AutoTokenizer": ["a/b--x.Y", None],
    }
    export_model(model, trained(model), source=str(source), path=tmp_path / "copy")
    written = json.loads((tmp_path / "copy" / "config.json").read_text())["auto_map"]
    assert written["AutoConfig"] == "configuration_odd.OddConfig"
    assert written["AutoTokenizer"] == ["x.Y", None]


def test_saving_into_the_models_own_folder(source):
    model = load(source)
    (source / "notes").mkdir()
    (source / "notes" / "monday.txt").write_text("lr too high")
    (source / "README.md").write_text("a model card")
    tensors = trained(model)
    for _ in range(2):
        export_model(model, tensors, source=str(source), path=source)
    assert files(source) == set(COMPANIONS) | {
        *("config.json", "generation_config.json", "model.safetensors", "README.md", "notes")
    }
    assert (source / "notes" / "monday.txt").read_text() == "lr too high"
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in saved(source).items())
    assert files(source.parent) == {"source"}


def test_cards_whose_figures_are_the_starting_models_stay_behind(source, tmp_path):
    model = load(source)
    for name in ("README.md", "MODEL_CARD.md"):
        (source / name).write_text("accuracy 0.85")
    export_model(model, trained(model), source=str(source), path=tmp_path / "target")
    assert not files(tmp_path / "target") & {"README.md", "MODEL_CARD.md"}
    assert set(COMPANIONS) <= files(tmp_path / "target")


def test_what_is_left_of_an_earlier_model_is_gone(source, tmp_path):
    """transformers would read the adapter, vLLM the index, and both the other tokenizer."""
    target = tmp_path / "target"
    tiny_llama().save_pretrained(target)
    stale = ("model.safetensors.index.json", "model-00001-of-00002.safetensors", "adapter_config.json")
    stale += ("adapter_model.safetensors", "pytorch_model.bin", "tokenizer.model", "vocab.json", "chat_template.jinja")
    for name in (*stale, "loss.csv"):
        (target / name).write_text("old")
    model = load(source)
    export_model(model, trained(model), source=str(source), path=target)
    assert not files(target) & set(stale)
    assert (target / "loss.csv").read_text() == "old"


def test_a_folder_that_is_no_model_is_refused(source, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("")
    model = load(source)
    for place in (tmp_path / "photos", source / "config.json"):
        with pytest.raises(ValueError, match="holds something that is no model"):
            export_model(model, trained(model), source=str(source), path=place)
    (tmp_path / "empty").mkdir()
    export_model(model, trained(model), source=str(source), path=tmp_path / "empty")
    assert "model.safetensors" in files(tmp_path / "empty")


@pytest.mark.parametrize("failing", ["save_file", "copy_companions", "_replace"])
def test_a_save_that_fails_leaves_the_old_model(source, monkeypatch, failing):
    model = load(source)
    before = saved(source), files(source)

    def disk_is_full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(export, failing, disk_is_full)
    with pytest.raises(OSError, match="No space"):
        export_model(model, trained(model), source=str(source), path=source)
    assert files(source) == before[1]
    assert all(torch.equal(tensor, before[0][name]) for name, tensor in saved(source).items())
    assert files(source.parent) == {"source"}
    load(source)


@pytest.mark.parametrize("number", [1, 2, 12, 16, 23])
def test_a_rename_that_fails_is_undone_with_those_before_it(source, monkeypatch, number):
    """Of a file that is itself a mount, for example."""
    model = load(source)
    before = {file.name: file.read_bytes() for file in source.iterdir() if file.is_file()}
    rename, calls = Path.rename, []

    def busy(self, target):
        if "staging" not in calls and self.name.startswith(".saving-"):
            calls.append("staging")
        elif "failed" not in calls:
            calls.append(self.name)
            if len(calls) == number + 1:
                calls.append("failed")
                raise OSError(errno.EBUSY, "Device or resource busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(OSError, match="busy"):
        export_model(model, trained(model), source=str(source), path=source)
    # Taken away first, brought last: in between nothing takes the folder for a model.
    assert calls[:2] == ["staging", "config.json"] and "config.json" not in calls[2:-2]
    assert {file.name: file.read_bytes() for file in source.iterdir()} == before


def test_a_save_changes_nothing_but_the_inside_of_the_folder(source, tmp_path):
    """A mounted volume can't be renamed, and its parent may be full or read-only."""
    parent = tmp_path / "volumes"
    target = parent / "out"
    target.mkdir(parents=True)
    (target / "lost+found").mkdir()
    target.chmod(0o2750)
    model = load(source)
    before = target.stat(), parent.stat().st_mtime_ns
    for _ in range(2):
        export_model(model, trained(model), source=str(source), path=target)
    after = target.stat(), parent.stat().st_mtime_ns
    assert (after[0].st_ino, after[0].st_mode, after[1]) == (before[0].st_ino, before[0].st_mode, before[1])
    assert files(target) == set(COMPANIONS) | {
        *("config.json", "generation_config.json", "model.safetensors", "lost+found")
    }


def killed_save(model, tensors, folder, when):
    """Saves into the model's own folder in a process that is killed; returns how it ended."""
    child = os.fork()
    if child:
        return os.WTERMSIG(os.waitpid(child, 0)[1])
    try:
        rename = Path.rename

        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)

        if when == "writing":
            export.copy_companions = die
        if when == "renaming":
            Path.rename = lambda self, target: die() if self.parent.name == "new" else rename(self, target)
        if when == "done":
            export.shutil.rmtree = die
        export_model(model, tensors, source=str(folder), path=folder)
    finally:
        os._exit(1)


@pytest.mark.parametrize("when, left", [("writing", ".saving-"), ("renaming", ".replacing-"), ("done", ".replacing-")])
def test_what_a_killed_save_leaves_is_whole_or_no_model_and_goes_with_the_next(source, when, left, caplog):
    old, model = saved(source), load(source)
    new = trained(model)
    assert killed_save(model, new, source, when) == signal.SIGKILL
    assert [name.startswith(left) for name in files(source) if name.startswith(".")] == [True]
    assert files(source.parent) == {"source"}
    if when == "renaming":
        with pytest.raises((OSError, ValueError), match=r"config\.json"):
            AutoModelForCausalLM.from_pretrained(source)
    else:
        whole = old if when == "writing" else new
        loaded = dict(load(source).named_parameters())
        assert all(torch.equal(parameter, whole[name]) for name, parameter in loaded.items())
    other = load(source) if when != "renaming" else model
    export_model(other, trained(other), source=str(source), path=source)
    assert not any(name.startswith(".") for name in files(source))
    assert "which an interrupted save has left" in caplog.text
    expected = trained(other)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in saved(source).items())


def test_sub_folders_stay(source, tmp_path):
    """Whatever is in them: nothing loads it with the folder, and it may be anyone's."""
    target = tmp_path / "target"
    tiny_llama().save_pretrained(target)
    for name in ("original/consolidated.00.pth", "tokenizers/tokenizer.json", "additional_chat_templates/tool.jinja"):
        (target / name).parent.mkdir()
        (target / name).write_text("old")
    model = load(source)
    export_model(model, trained(model), source=str(source), path=target)
    assert (target / "original" / "consolidated.00.pth").read_text() == "old"
    assert (target / "tokenizers" / "tokenizer.json").read_text() == "old"
    # These are part of the tokenizer.
    assert not (target / "additional_chat_templates").exists()


def test_a_source_that_is_gone_is_named_before_anything_is_written(source, tmp_path):
    model = load(source)
    source.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="source, which the model was loaded from, is gone"):
        export_model(model, trained(model), source=str(source), path=tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_link_to_a_folder_stays_one(source, tmp_path):
    (tmp_path / "latest").symlink_to(source)
    model = load(source)
    export_model(model, trained(model), source=str(source), path=tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert torch.equal(saved(source)["lm_head.weight"], trained(model)["lm_head.weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_config_and_tensors_are_of_the_dtype_that_was_trained(tmp_path, dtype):
    """Whatever the dtype of the model that training started from."""
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path / "source")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "source", dtype=dtype)
    export_model(model, trained(model), source=str(tmp_path / "source"), path=tmp_path / "copy")
    assert {tensor.dtype for tensor in saved(tmp_path / "copy").values()} == {dtype}
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "copy", dtype="auto").dtype == dtype


def test_buffers_of_a_checkpoint_are_told_from_caches():
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "head_dim": 4}
    model = Glm4MoeForCausalLM(
        Glm4MoeConfig(
            **sizes,
            num_key_value_heads=1,
            num_hidden_layers=2,
            first_k_dense_replace=1,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=8,
        )
    )
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    model.get_buffer(name).copy_(torch.tensor([0.0, 5, 0, 0]))
    buffers = dict(persistent_buffers(model))
    # Rotary frequencies are computed, not stored.
    assert list(buffers) == [name] and len(list(model.buffers())) > 1
    assert set(dict(model.named_parameters()) | buffers) == set(model.state_dict())
