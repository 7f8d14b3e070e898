"""A task of your own: one class with a prompt and a reward, registered with Gymnasium, and checked.

    python examples/my_environment.py

Expect "my/Reverse-v0 keeps every promise" , a prompt, and the reward of one response. Training on it is then
`GRPOConfig().environment("my/Reverse-v0", env_config={"length": 5})`.
"""

from typing import Any

import gymnasium
import numpy as np

from rlhf_algos.envs import PromptEnv, check_env, make_prompt_env


class Reverse(PromptEnv):
    """Writes a word backwards; the reward is the share of letters in the right place."""

    def __init__(self, length: int = 4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length

    def prompt(self, rng: np.random.Generator) -> str:
        """Draws the letters."""
        self.word = "".join(rng.choice(list("abcdefgh"), size=self.length))
        return f"{self.word} backwards is "

    def reward(self, response: str) -> float:
        """Compare letter by letter."""
        answer = self.word[::-1]
        return sum(a == b for a, b in zip(answer, response.strip(), strict=False)) / len(answer)


gymnasium.register("my/Reverse-v0", Reverse)

if __name__ == "__main__":
    check_env("my/Reverse-v0")
    print("my/Reverse-v0 keeps every promise")
    env = make_prompt_env("my/Reverse-v0", {"length": 5, "split": "heldout"})
    prompt, _ = env.reset(seed=0)
    print("prompt:", prompt)
    print("reward of 'abcde':", env.step("abcde")[1])
