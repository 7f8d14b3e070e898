"""Between text and tokens: prompts are encoded once, responses decoded once, never back and forth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer, GenerationConfig


class PromptTokenizer:
    """The tokenizer of one rollout actor.

    Args:
        model: directory or hub id.
        trust_remote_code: run tokenizer code that ships with the model.
        stop_token_ids: ids that end a response besides the model's own.
    """

    def __init__(self, model: str, *, trust_remote_code: bool, stop_token_ids: Sequence[int] = ()) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
        self.end_ids = end_token_ids(model, self._tokenizer.eos_token_id) | set(stop_token_ids)
        if not self.end_ids:
            raise ValueError(
                f"{model} has no end-of-sequence id, neither in its generation config nor in its tokenizer; "
                "name one with sampling(stop_token_ids=[...])."
            )

    def encode(self, prompt: str | list[dict[str, str]]) -> list[int]:
        """Token ids of a text prompt, or of chat messages through the model's chat template.

        Raises:
            ValueError: if the prompt is chat messages and the tokenizer has no chat template, or if it is empty.
        """
        if isinstance(prompt, str):
            ids = self._tokenizer(prompt)["input_ids"]
        else:
            if self._tokenizer.chat_template is None:
                raise ValueError("The prompt is chat messages, but the model's tokenizer has no chat template.")
            ids = self._tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        if not ids:
            raise ValueError(f"The prompt {prompt!r} has no tokens.")
        return list(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a response, decoded as a whole, without the id that ended it and other special tokens."""
        ids = list(token_ids)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def end_token_ids(model: str, tokenizer_eos: int | None) -> set[int]:
    """Every id that ends a response: all of the generation config, and the tokenizer's."""
    ids = set() if tokenizer_eos is None else {tokenizer_eos}
    try:
        configured = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # a model without generation_config.json
        configured = None
    if configured is not None:
        ids |= {configured} if isinstance(configured, int) else set(configured)
    return ids
