"""Gymnasium spaces for prompts and responses.

`gymnasium.spaces.Text` lists its characters one by one, so a text with any Unicode in it would need a set
of 1.1 million; these spaces test membership with a rule instead.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Space

Message = dict[str, Any]
"""One chat message: `role` and `content` are strings; further keys go to the chat template as they are."""

Prompt = str | list[Message]
"""What the model reads: plain text, or chat messages for the tokenizer's chat template."""

SAMPLE_LENGTH = 32
FIRST_SURROGATE, LAST_SURROGATE, LAST_CODE_POINT = 0xD800, 0xDFFF, 0x10FFFF


def is_encodable(text: str) -> bool:
    """Tell whether a text can be written as UTF-8, which is what a tokenizer needs (no lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_message(value: object) -> bool:
    """Tell whether a value is one chat message: a dict with a non-empty `role` and a `content`, both text."""
    if not isinstance(value, Mapping):
        return False
    role, content = value.get("role"), value.get("content")
    return isinstance(role, str) and isinstance(content, str) and bool(role) and is_encodable(role + content)


def random_text(rng: np.random.Generator) -> str:
    """Draws a text of 0 to 32 characters, half of them ASCII and half from all of Unicode."""
    code_points = []
    for _ in range(int(rng.integers(0, SAMPLE_LENGTH + 1))):
        code_point = int(rng.integers(0x20, 0x7F) if rng.random() < 0.5 else rng.integers(LAST_CODE_POINT + 1))
        if FIRST_SURROGATE <= code_point <= LAST_SURROGATE:
            code_point = ord("\ufffd")
        code_points.append(code_point)
    return "".join(map(chr, code_points))


class UnicodeText(Space[str]):
    """Every text that can be written as UTF-8, the empty one included: the action space of a prompt task."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text has no fixed length."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A random text of 0 to 32 characters; masks are not supported."""
        reject_masks(self, mask, probability)
        return random_text(self.np_random)

    def contains(self, x: Any) -> bool:
        """Tell whether `x` is a text without lone surrogates."""
        return isinstance(x, str) and is_encodable(x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText)

    def __hash__(self) -> int:
        return hash(UnicodeText)

    def __repr__(self) -> str:
        return "UnicodeText()"


class PromptSpace(Space[Prompt]):
    """Every prompt: a text, or a list of chat messages. The empty ones mean "nothing more to read"."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a prompt has no fixed length."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> Prompt:
        """A random text or, as often, 0 to 3 random chat messages; masks are not supported."""
        reject_masks(self, mask, probability)
        if self.np_random.random() < 0.5:
            return random_text(self.np_random)
        roles = ("system", "user", "assistant")
        return [
            {"role": roles[int(self.np_random.integers(len(roles)))], "content": random_text(self.np_random)}
            for _ in range(int(self.np_random.integers(0, 4)))
        ]

    def contains(self, x: Any) -> bool:
        """Tell whether `x` is an encodable text or a list of chat messages."""
        if isinstance(x, str):
            return is_encodable(x)
        return isinstance(x, list) and all(is_message(message) for message in x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptSpace)

    def __hash__(self) -> int:
        return hash(PromptSpace)

    def __repr__(self) -> str:
        return "PromptSpace()"


def reject_masks(space: Space[Any], mask: object, probability: object) -> None:
    """Raises a ValueError if a mask was given: there is no finite list of texts it could weigh."""
    for name, value in (("mask", mask), ("probability", probability)):
        if value is not None:
            raise ValueError(f"{space!r}.sample({name}={value!r}): this space has no masks, leave {name} out.")
