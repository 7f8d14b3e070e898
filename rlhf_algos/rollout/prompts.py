"""Between text and tokens: prompts are encoded once, responses decoded once, never back and forth."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME


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

        self._control_tokens = _control_tokens(self._tokenizer)
        if self._control_tokens:
            # One list for text prompts, which have no template to look into, and for messages.
            self._tokenizer.chat_control_tokens = self._control_tokens

    def encode(self, prompt: str | list[dict[str, str]], *, control_tokens: str = "text") -> list[int]:
        """Token ids of a text prompt, or of chat messages through the model's chat template.

        Args:
            prompt: text, or messages.
            control_tokens: what becomes of "<|end|>" and the like in the prompt's own text: "text" encodes its
                characters, so that the only control tokens are those of the chat template and those that the tokenizer
                puts around every text; "tokens" makes control tokens of them.

        Raises:
            ValueError: if the prompt is chat messages and the tokenizer has no chat template, or if it is empty, or if
                control tokens in it can't be kept as text.
        """
        as_text = control_tokens == "text" and _contains(prompt, self._control_tokens)
        if isinstance(prompt, str):
            ids = self._encode_as_text(prompt) if as_text else self._tokenizer(prompt)["input_ids"]
        elif self._tokenizer.chat_template is None:
            raise ValueError("The prompt is chat messages, but the model's tokenizer has no chat template.")
        else:
            ids = self._apply_template(prompt, as_text=as_text)
        if not ids:
            raise ValueError(f"The prompt {prompt!r} has no tokens.")
        return list(ids)

    def decode(self, token_ids: Sequence[int], *, special_tokens: str = "show") -> str:
        """Text of a response, decoded as a whole, without the id that ended it.

        Args:
            token_ids: sampled ids.
            special_tokens: "show" writes every other special token as its text ("<|user|>"), "hide" leaves them out.
                Hidden, a response with and without them is the same text.
        """
        ids = list(token_ids)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        hide = special_tokens == "hide"
        return self._tokenizer.decode(ids, skip_special_tokens=hide, clean_up_tokenization_spaces=False)

    def _apply_template(self, messages: Any, *, as_text: bool, template: str | None = None) -> list[int]:
        if as_text and _contains(messages, _DROPPED_CHARACTERS):
            raise ValueError(
                f"The prompt {messages!r} has both control tokens and one of the private characters U+F0000 and "
                "U+F0001, which transformers uses to tell such text from the template's own tokens and would drop."
            )
        return self._tokenizer.apply_chat_template(
            messages,
            chat_template=template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            sanitize_control_tokens=as_text,
        )

    def _encode_as_text(self, text: str) -> list[int]:
        """Ids of a text whose control tokens stay text, between the special tokens that any text gets."""
        mask = self._tokenizer("a", return_special_tokens_mask=True)
        is_special = mask["special_tokens_mask"]
        first, last = is_special.index(0), len(is_special) - is_special[::-1].index(0)
        # A template that writes the text and nothing else.
        ids = self._apply_template([{"role": "user", "content": text}], as_text=True, template=_TEXT_ALONE)
        return [*mask["input_ids"][:first], *ids, *mask["input_ids"][last:]]


_TEXT_ALONE = "{{ messages[0]['content'] }}"
_DROPPED_CHARACTERS = ("\U000f0000", "\U000f0001")


def _contains(value: Any, texts: Sequence[str]) -> bool:
    """Whether any of the texts is in a text, or in one inside of messages."""
    if isinstance(value, str):
        return any(text in value for text in texts)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(_contains(part, texts) for part in parts)


def _control_tokens(tokenizer: Any) -> list[str]:
    """Tokens that text must not turn into: all special ones, and added ones that the chat template or the model names.

    Other added tokens are ordinary text that a tokenizer keeps whole, such as runs of white space.
    """
    try:
        added = tokenizer.added_tokens_decoder.values()
    except NotImplementedError:  # mistral-common's tokenizers, which make no control token of any text
        return []
    named = tokenizer.chat_control_tokens
    if named is None:
        named = str(tokenizer.chat_template or "")
    return [token.content for token in added if token.special or (token.content in named and token.content.strip())]


def end_token_ids(model: str, tokenizer_eos: int | None) -> set[int]:
    """Every id that ends a response: all of the generation config, and the tokenizer's.

    Raises:
        ValueError: if the model's `generation_config.json` can't be read, or names something that is no id.
        OSError: if the hub can't be asked whether there is one.
    """
    ids = set() if tokenizer_eos is None else {tokenizer_eos}
    if not _has_generation_config(model):
        return ids
    try:
        configured = GenerationConfig.from_pretrained(model).eos_token_id
    except Exception as error:
        raise ValueError(
            f"{model}: {GENERATION_CONFIG_NAME} can't be read, so the ids that end a response are not known: {error}"
        ) from error
    listed = [] if configured is None else [configured] if isinstance(configured, int) else configured
    if not isinstance(listed, list) or not all(isinstance(each, int) for each in listed):
        raise ValueError(
            f"{model}: {GENERATION_CONFIG_NAME} has eos_token_id={configured!r}, not an id or a list of ids."
        )
    return ids | set(listed)


def _has_generation_config(model: str) -> bool:
    """Only a file that is known not to be there is absent."""
    if Path(model).is_dir():
        # A link to nothing is a damaged file.
        return os.path.lexists(Path(model) / GENERATION_CONFIG_NAME)
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        hf_hub_download(model, GENERATION_CONFIG_NAME)
    except LocalEntryNotFoundError as error:
        if try_to_load_from_cache(model, GENERATION_CONFIG_NAME) is _CACHED_NO_EXIST:
            return False
        raise OSError(
            f"{model}: the hub could not be asked for {GENERATION_CONFIG_NAME}, which may name ids that end a "
            "response, and the local cache does not know whether the model has one. Load the model once with a "
            "connection, or give language_model(...) a folder."
        ) from error
    except EntryNotFoundError:
        return False
    return True
