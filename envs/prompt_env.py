"""`PromptEnv`, the base class of a task: a prompt, a response, a reward."""

import json
import math
import numbers
import reprlib
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from rlhf_algos.envs.spaces import Prompt, PromptSpace, UnicodeText
from rlhf_algos.envs.splits import check_split, split_of

MAX_DRAWS = 1000
SPECIAL_TOKEN_CHOICES = {
    "control_tokens_in_prompt": ("text", "tokens"),
    "special_tokens_in_response": ("show", "hide"),
}
INDEX_STREAM = 0x1D  # keeps the generator of problem i apart from the one that seed i would give


class RewardError(RuntimeError):
    """A response could not be scored: the reward function raised, or returned something that is no number."""


def finite_reward(value: object, name: str, where: str) -> float:
    """A reward as a float, whoever made it.

    Args:
        value: What a reward function, a `step` or a wrapper returned.
        name: Of the environment, for the error.
        where: The prompt, the response or the sample, for the error.

    Raises:
        RewardError: It is not a finite number (text, None, an array, NaN, infinite, too large for a float).
    """
    try:
        if isinstance(value, numbers.Real | np.bool_) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        pass
    raise RewardError(f"{name}: the reward is {reprlib.repr(value)}, it must be a finite number ({where}).")


class PromptEnv(gymnasium.Env[Prompt, str]):
    """A task for a language model, as a Gymnasium environment.

    A task of your own overrides two methods:

    >>> class Echo(PromptEnv):
    ...     def prompt(self, rng):
    ...         self.word = str(rng.choice(["apple", "pear", "plum", "fig"]))
    ...         return f"Repeat: {self.word}"
    ...     def reward(self, response):
    ...         return float(response.strip() == self.word)
    >>> env = Echo(split="all")
    >>> prompt, info = env.reset(seed=0)
    >>> env.step(prompt.removeprefix("Repeat: "))
    ('', 1.0, True, False, {})

    `reset(seed=...)` returns a prompt, the same one for the same seed, so the members of a group are as many
    copies reset with one seed. `reset(options={"index": i})` returns the i-th problem of a fixed order,
    which is what an evaluation walks through. `step(response)` scores the response and ends the episode.

    Every task has a held-out split. A problem belongs to "train" or "heldout" by a stable hash of
    `problem_key`, and a reset only returns problems of this environment's `split`; "all" is both.

    A conversation of several turns overrides `step`: it returns what the model reads next after its own
    response (text, or chat messages to append) and `terminated=False`, and scores with `checked_reward`.
    A subclass with arguments of its own passes the others on: `super().__init__(**kwargs)`.

    Two choices about special tokens ("<|user|>", "<eos>") stand as class attributes, and can be given to the
    constructor too (`env_config={"special_tokens_in_response": "hide"}`); docs/environments.md has examples.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (an instance variable in Gymnasium)
    heldout_fraction: ClassVar[float] = 0.1
    num_problems: int | None = None
    """How many problems `reset(options={"index": i})` counts, None if there is no end."""
    split: str = "train"
    control_tokens_in_prompt: str = "text"
    """What becomes of control tokens that stand in a prompt's own text: "text" keeps their characters, so that no
    text can end a turn or begin another; "tokens" makes control tokens of them, for a template written by hand."""
    special_tokens_in_response: str = "show"
    """What the reward sees of special tokens other than the one that ended the response: "show" writes their text
    ("1<|user|>2"), "hide" leaves them out ("12")."""
    _prompt: Prompt | None = None

    def __init__(
        self,
        *,
        split: str = "train",
        control_tokens_in_prompt: str | None = None,
        special_tokens_in_response: str | None = None,
    ) -> None:
        self.split = check_split(split)
        if control_tokens_in_prompt is not None:
            self.control_tokens_in_prompt = control_tokens_in_prompt
        if special_tokens_in_response is not None:
            self.special_tokens_in_response = special_tokens_in_response
        self.check_special_tokens()
        self.observation_space = PromptSpace()
        self.action_space = UnicodeText()

    def prompt(self, rng: np.random.Generator) -> Prompt:
        """Draws a problem: returns its prompt and keeps on `self` what the reward needs.

        All randomness comes from `rng`. Called again when the problem belongs to another split.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prompt(self, rng) -> str or messages.")

    def reward(self, response: str) -> float:
        """Score a response to the latest prompt with a finite number."""
        raise NotImplementedError(f"{type(self).__name__} must define reward(self, response) -> float.")

    def problem_key(self, prompt: Prompt) -> str:
        """What decides the split of the latest problem: the prompt, unless a task knows better.

        Override it when two prompts are one problem (examples in random order, operands swapped).
        """
        return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)

    def prompt_at(self, index: int) -> Prompt:
        """The prompt of problem `index` of this split, always the same one.

        The default draws it with a generator seeded by the index, so two indices can meet on one problem.
        A task with a list of problems overrides this and sets `num_problems`.
        """
        return self.draw_in_split(np.random.default_rng([INDEX_STREAM, index]))

    def in_split(self, prompt: Prompt) -> bool:
        """Tell whether the latest problem, with this prompt, belongs to this environment's split."""
        return self.split in ("all", split_of(self.problem_key(prompt), self.heldout_fraction))

    def draw_in_split(self, rng: np.random.Generator) -> Prompt:
        """Draws prompts until one belongs to this environment's split.

        Raises:
            RuntimeError: None of 1,000 draws does.
        """
        for _ in range(MAX_DRAWS):
            prompt = self._checked_prompt(self.prompt(rng))
            if self.in_split(prompt):
                return prompt
        raise RuntimeError(
            f"{self.name}: none of {MAX_DRAWS} prompts belongs to split={self.split!r}. The task has too few "
            f'problems for heldout_fraction={self.heldout_fraction}: add some, or build it with split="all".'
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Prompt, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Fixes this draw and those after it; None goes on from the latest draw.
            options: `{"index": i}` asks for the i-th problem of the split's fixed order.

        Returns:
            The prompt, and an empty info.

        Raises:
            ValueError: Unknown option, or an index outside the problems.
        """
        super().reset(seed=seed)
        index = checked_index(options or {}, self)
        if index is None:
            self._prompt = self.draw_in_split(self.np_random)
        else:
            self._prompt = self._checked_prompt(self.prompt_at(index))
            if not self.in_split(self._prompt):
                raise ValueError(
                    f"{self.name}: problem {index}, {self._prompt!r}, does not belong to split={self.split!r}, so an "
                    "evaluation would play what is trained on. Let prompt_at() and num_problems count the problems of "
                    "this split alone: those for which self.in_split(prompt) is true."
                )
        return self._prompt, {}

    def step(self, response: str) -> tuple[Prompt, float, bool, bool, dict[str, Any]]:
        """Score the response and end the episode.

        Returns:
            Nothing more to read (an empty prompt), the reward, True (terminated), False, an empty info.

        Raises:
            ResetNeeded: No episode is running.
            RewardError: The response can't be scored.
        """
        nothing: Prompt = "" if isinstance(self._prompt, str) else []
        reward = self.checked_reward(response)
        self._prompt = None
        return nothing, reward, True, False, {}

    def checked_reward(self, response: str) -> float:
        """`reward(response)` as a float.

        Raises:
            ResetNeeded: No episode is running.
            TypeError: The response is not text.
            RewardError: The reward function raised, or returned no finite number. Names the environment, the
                prompt and the response.
        """
        if self._prompt is None:
            raise ResetNeeded(f"{self.name}: call reset() before step(), and again after each episode's end.")
        if not isinstance(response, str):
            raise TypeError(f"{self.name}: response={response!r} is a {type(response).__name__}, not a str.")
        where = f"prompt={self._prompt!r}, response={response!r}"
        try:
            value = self.reward(response)
        except Exception as error:
            raise RewardError(
                f"{self.name}: the reward function raised {type(error).__name__}: {error} ({where})."
            ) from error
        return finite_reward(value, self.name, where)

    def check_special_tokens(self) -> None:
        """Checks the two choices about special tokens.

        Raises:
            ValueError: One has a value that means nothing; names it and what it can be.
        """
        for option, choices in SPECIAL_TOKEN_CHOICES.items():
            value = getattr(self, option)
            if value not in choices:
                raise ValueError(f"{self.name}: {option}={value!r} must be {choices[0]!r} or {choices[1]!r}.")

    @property
    def name(self) -> str:
        """The id this environment was made with, or else its class's name."""
        return self.spec.id if self.spec is not None else type(self).__name__

    def _checked_prompt(self, prompt: Prompt) -> Prompt:
        if not prompt or prompt not in self.observation_space:
            raise ValueError(
                f"{self.name}: prompt={prompt!r} is no prompt. It must be non-empty text, or a non-empty "
                "list of messages with the texts 'role' and 'content', without lone surrogates."
            )
        return prompt


def checked_index(options: Mapping[str, Any], env: PromptEnv) -> int | None:
    """The index among the options of a reset, if there is one.

    Raises:
        ValueError: There is another option, or the environment has no such problem.
    """
    unknown = sorted(set(options) - {"index"})
    if unknown:
        raise ValueError(f"{env.name}: unknown reset options {unknown}; the only one is 'index'.")
    index = options.get("index")
    if index is None:
        return None
    if isinstance(index, bool) or not isinstance(index, int | np.integer) or index < 0:
        raise ValueError(f"{env.name}: index={index!r} must be a whole number, 0 or above.")
    if env.num_problems is not None and index >= env.num_problems:
        raise ValueError(
            f"{env.name}: index={index} is outside the {env.num_problems} problems of split={env.split!r}."
        )
    return int(index)
