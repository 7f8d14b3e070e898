"""`rlhf_algos/Addition-v0`: add two numbers."""

import functools
from typing import Any

import numpy as np

from rlhf_algos.envs.prompt_env import PromptEnv
from rlhf_algos.envs.spaces import Prompt
from rlhf_algos.envs.splits import split_of

MAX_DIGITS = 15
MAX_LISTED_DIGITS = 2
ORDER_SEED = 20240731


class Addition(PromptEnv):
    """Adds two numbers of `digits` digits each: the prompt is "12+34=", the right answer "46".

    The reward is 1.0 if the response, without surrounding white space, is the sum in plain digits, else 0.0.
    "12+34=" and "34+12=" are one problem: both are held out, or neither. With one or two digits the problems
    of a split can be listed, and `num_problems` says how many there are.
    """

    def __init__(self, digits: int = 2, **kwargs: Any) -> None:
        if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= MAX_DIGITS:
            raise ValueError(f"digits={digits!r}: must be a whole number from 1 to {MAX_DIGITS}.")
        super().__init__(**kwargs)
        self.digits = digits
        if digits <= MAX_LISTED_DIGITS:
            self.num_problems = len(listed_problems(digits, self.split, self.heldout_fraction))

    def prompt(self, rng: np.random.Generator) -> Prompt:
        """Draws both numbers uniformly."""
        left, right = rng.integers(smallest(self.digits), 10**self.digits, size=2)
        return self.ask(int(left), int(right))

    def prompt_at(self, index: int) -> Prompt:
        """Problem `index` of the split's fixed shuffled order (above two digits, of a seeded draw)."""
        if self.digits > MAX_LISTED_DIGITS:
            return super().prompt_at(index)
        return self.ask(*listed_problems(self.digits, self.split, self.heldout_fraction)[index])

    def ask(self, left: int, right: int) -> str:
        """Makes `left` plus `right` the problem and returns its prompt."""
        self.left, self.right = left, right
        return f"{left}+{right}="

    def problem_key(self, prompt: Prompt) -> str:
        """The same key for both orders of the two numbers."""
        return addition_key(self.left, self.right)

    def reward(self, response: str) -> float:
        """1.0 for the sum, else 0.0."""
        return float(response.strip() == str(self.left + self.right))


def smallest(digits: int) -> int:
    """The smallest number of that many digits (0 for one digit)."""
    return 0 if digits == 1 else 10 ** (digits - 1)


def addition_key(left: int, right: int) -> str:
    """The problem's key, the same for both orders."""
    return f"{min(left, right)}+{max(left, right)}"


@functools.lru_cache(maxsize=16)
def listed_problems(digits: int, split: str, heldout_fraction: float) -> tuple[tuple[int, int], ...]:
    """Every ordered pair of numbers of that many digits that belongs to the split, shuffled once."""
    numbers = range(smallest(digits), 10**digits)
    pairs = [
        (left, right)
        for left in numbers
        for right in numbers
        if split == "all" or split == split_of(addition_key(left, right), heldout_fraction)
    ]
    order = np.random.default_rng(ORDER_SEED).permutation(len(pairs))
    return tuple(pairs[i] for i in order)
