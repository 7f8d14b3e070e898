"""The two things that a rollout actor plays: training and evaluation, each with environments and a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_algos.rollout.environments import LocalEnvironments
from rlhf_algos.rollout.prompts import PromptTokenizer
from rlhf_algos.rollout.settings import PlaySettings, RolloutSettings


@dataclass(frozen=True)
class Stage:
    """What a player needs besides the engine.

    Attributes:
        play: what is played and how.
        environments: in which; none is made yet.
        tokenizer: the model's, with the ids that end a response here.
    """

    play: PlaySettings
    environments: LocalEnvironments
    tokenizer: PromptTokenizer


def stages_of(settings: RolloutSettings) -> tuple[Stage, Stage]:
    """Training and evaluation; the tokenizer is loaded once where both end responses alike."""
    plays = settings.training, settings.evaluation
    tokenizers = {
        ids: PromptTokenizer(settings.model_path, trust_remote_code=settings.trust_remote_code, stop_token_ids=ids)
        for ids in {play.sampling.stop_token_ids for play in plays}
    }
    training, evaluation = (
        Stage(
            play,
            LocalEnvironments(play.create, unscorable=play.unscorable_responses),
            tokenizers[play.sampling.stop_token_ids],
        )
        for play in plays
    )
    return training, evaluation
