"""The spaces of prompts and responses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_algos.envs import PromptSpace, UnicodeText

MESSAGE = {"role": "user", "content": "客🙂"}


@given(st.text())
def test_every_encodable_text_is_in_both(text):
    assert text in UnicodeText() and text in PromptSpace()
    assert [{"role": "user", "content": text}] in PromptSpace()


@pytest.mark.parametrize("space", [UnicodeText, PromptSpace])
def test_samples_are_inside_seeded_and_varied(space):
    one, other = space(seed=3), space()
    other.seed(3)
    samples = [one.sample() for _ in range(200)]
    assert all(sample in one for sample in samples)
    assert samples == [other.sample() for _ in range(200)]
    assert samples != [space(seed=4).sample() for _ in range(200)]
    texts = [sample for sample in samples if isinstance(sample, str)]
    assert any(not text.isascii() for text in texts) and "" in texts
    if space is PromptSpace:
        chats = [sample for sample in samples if isinstance(sample, list)]
        assert {len(chat) for chat in chats} == {0, 1, 2, 3} and len(texts) > 50


@pytest.mark.parametrize("value", [None, 3, b"a", "\ud800", ["a"], [MESSAGE]])
def test_not_a_response(value):
    assert value not in UnicodeText()


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        MESSAGE,
        (MESSAGE,),
        ["a"],
        [{}],
        [{"role": "user"}],
        [{"content": "a"}],
        [{"role": "", "content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": "\ud800"}],
        [MESSAGE, {"role": 3, "content": "a"}],
    ],
)
def test_not_a_prompt(value):
    assert value not in PromptSpace()


def test_further_message_keys_go_to_the_chat_template():
    assert [{**MESSAGE, "name": "n", "tool_calls": []}] in PromptSpace()


@pytest.mark.parametrize("space", [UnicodeText(), PromptSpace()])
def test_equality_flattening_and_masks(space):
    assert space == type(space)(seed=1) and hash(space) == hash(type(space)())
    assert space != (PromptSpace() if isinstance(space, UnicodeText) else UnicodeText())
    assert not space.is_np_flattenable and repr(space) == f"{type(space).__name__}()"
    for name in ("mask", "probability"):
        with pytest.raises(ValueError, match=rf"^\w+\(\)\.sample\({name}=1\): this space has no masks, leave"):
            space.sample(**{name: 1})
