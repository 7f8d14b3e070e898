"""What tests of episodes share: a task, a plan, and a player on a table of answers."""

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.envs import PromptEnv
from rlhf_algos.rollout.plans import plan_of_groups
from rlhf_algos.rollout.player import Player
from rlhf_algos.rollout.stages import stages_of
from tests.fake_engine import END, ZERO, FakeEngine


class Counted(PromptEnv):
    """Prompts that can be told apart; the reward is the number that was answered."""

    heldout_fraction = 0.0

    def prompt(self, rng):
        return f"{rng.integers(1000, 9999)}="

    def reward(self, response):
        return float(response)


def settings_for(env=Counted, *, sampling=None, unscorable="stop"):
    config = (
        GRPOConfig()
        .environment(env)
        .sampling(**{"max_response_tokens": 4, **(sampling or {})})
        .training(group_size=4, unscorable_responses=unscorable)
        .debugging(seed=0)
    )
    return config.rollout_settings()


def player_on(engine, settings, environments=None):
    training, _ = stages_of(settings)
    return Player(engine, environments or training.environments, training.tokenizer, settings, training.play)


def plan_for(*groups):
    return plan_of_groups(groups, size=4, seed=0)


def played(env=Counted, *groups, engine=None, **options):
    player = player_on(engine or FakeEngine(), settings_for(env, **options))
    player.start(plan_for(*groups), weight_version=3)
    return player.advance(), player.too_long


def answers_its_number(request):
    """`training-13` is answered with the digits 1 and 3."""
    return [ZERO + int(digit) for digit in request.key.split("-")[1]] + [END]
