"""What a rollout actor is told: frozen objects that a configuration makes, and all that `rollout` knows of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium

from rlhf_algos.batch import SampledWith
from rlhf_algos.rollout.groups import TaskFacts
from rlhf_algos.rollout.sampling import SamplingSettings
from rlhf_algos.weight_sync.mismatch_injection import MismatchInjection


@dataclass(frozen=True)
class PlaySettings:
    """What is played and how, in training or in an evaluation.

    Attributes:
        environment: its name, recorded with every batch.
        create: makes one environment.
        sampling: how responses are sampled, greedy ones apart.
        unscorable_responses: what becomes of a response without a reward: "stop" raises, "leave_out" goes on.
        seed: with an episode's identity it decides the noise.
    """

    environment: str
    create: Callable[[], gymnasium.Env[Any, str]]
    sampling: SamplingSettings
    unscorable_responses: str
    seed: int


@dataclass(frozen=True)
class RolloutSettings:
    """Everything that a rollout actor is configured with.

    Attributes:
        model: its name, recorded with every batch.
        model_path: its directory or hub id.
        trust_remote_code: run code that ships with the model.
        engine_args: any argument of `vllm.EngineArgs`.
        threads: of the actor's process.
        group_size: episodes of a group.
        mismatch_injection: what is done to the sampler on purpose, recorded with every batch.
        training: what groups are made of.
        evaluation: what an evaluation plays.
        evaluation_duration: problems of an evaluation.
        evaluation_is_due: whether the run has evaluations of its own, so that they must be playable from the start.
        in_evaluation: whether the actor plays evaluations alone.
    """

    model: str
    model_path: str
    trust_remote_code: bool
    engine_args: Mapping[str, Any]
    threads: int
    group_size: int
    mismatch_injection: MismatchInjection
    training: PlaySettings
    evaluation: PlaySettings
    evaluation_duration: int
    evaluation_is_due: bool
    in_evaluation: bool

    @property
    def record_routes(self) -> bool:
        """Whether the engine returns the experts chosen at each position."""
        return self.training.sampling.record_routes

    def sampled_with(self, play: PlaySettings, sampling: SamplingSettings, task: TaskFacts) -> SampledWith:
        """What a batch says about how it was sampled."""
        return SampledWith(
            model=self.model,
            environment=play.environment,
            split=task.split,
            split_rule=task.split_rule,
            mismatch_injection=self.mismatch_injection.as_dict(),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_response_tokens=sampling.max_response_tokens,
            stop_token_ids=sampling.stop_token_ids,
            record_head=sampling.record_head,
            record_routes=sampling.record_routes,
        )


class RolloutConfig(Protocol):
    """The one thing that a rollout actor asks of RLlib's configuration object."""

    def rollout_settings(self) -> RolloutSettings:
        """The settings, for the process that asks."""
        ...
