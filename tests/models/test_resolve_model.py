"""resolve_model: bundled names, and everything else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_algos.models import BUNDLED, resolve_model


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_bundled_name_is_a_folder_with_a_model(name):
    folder = Path(resolve_model(name))
    assert folder.is_absolute()
    assert {file.name for file in folder.iterdir()} >= {
        "MODEL_CARD.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "/some/where", "./here", "rlhf_algos", "other/tiny-moe", ""])
def test_other_names_are_returned_unchanged(name):
    assert resolve_model(name) == name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rlhf_algos/tiny_moe", " Did you mean 'rlhf_algos/tiny-moe'?"),
        ("rlhf_algos/big", ""),
        ("rlhf_algos/", ""),
    ],
)
def test_unknown_name_of_ours(name, meant):
    message = (
        f"model={name!r}: no model of this name comes with the library.{meant} These do: "
        "rlhf_algos/tiny-moe. Any other folder or hub id is taken as it is."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        resolve_model(name)


def test_no_torch_is_loaded():
    code = "import sys, rlhf_algos.models; print('torch' in sys.modules, 'transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "False False\n"
