"""The Python on docs/environments.md does what the page says."""

import re
from pathlib import Path

import gymnasium
import pytest

from rlhf_algos.envs import PromptEnv

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


@pytest.fixture
def blocks():
    """Names that the page's blocks define, run one after another as a reader would."""
    names = {"PromptEnv": PromptEnv}
    try:
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(block, names)
        yield names
    finally:
        gymnasium.registry.pop("my/Reverse-v0", None)


def test_the_examples_run(blocks):
    env = blocks["Reverse"](length=3)
    prompt, _ = env.reset(seed=0)
    assert env.step(prompt[:3][::-1])[1] == 1.0
    by_hand = blocks["ByHand"]()
    assert by_hand.reset(seed=0)[0].startswith("<|user|>") and by_hand.control_tokens_in_prompt == "tokens"
