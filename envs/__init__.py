"""Tasks as Gymnasium environments: a prompt, a response, a reward."""

from rlhf_algos.envs.addition import Addition
from rlhf_algos.envs.check_env import check_env
from rlhf_algos.envs.prompt_env import PromptEnv, RewardError, finite_reward
from rlhf_algos.envs.registration import EnvCreator, env_creator_for, make_prompt_env, register_bundled
from rlhf_algos.envs.spaces import Message, Prompt, PromptSpace, UnicodeText

__all__ = [
    "Addition",
    "EnvCreator",
    "Message",
    "Prompt",
    "PromptEnv",
    "PromptSpace",
    "RewardError",
    "UnicodeText",
    "check_env",
    "env_creator_for",
    "finite_reward",
    "make_prompt_env",
    "register_bundled",
]

register_bundled()
