"""The bundled model, loaded once, and its held-out problems."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_algos.envs import make_prompt_env
from rlhf_algos.models import resolve_model


@pytest.fixture(scope="session")
def folder():
    return resolve_model("rlhf_algos/tiny-moe")


@pytest.fixture(scope="session")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def heldout():
    """Return the environment, and the prompts of every held-out problem."""
    env = make_prompt_env("rlhf_algos/Addition-v0", {"digits": 2, "split": "heldout"}).unwrapped
    return env, [env.reset(options={"index": index})[0] for index in range(env.num_problems)]
