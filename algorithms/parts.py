"""The parts of a run, over the processes that are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.algorithms.config import LanguageModelAlgorithmConfig
from rlhf_algos.driver.crew import Crew
from rlhf_algos.driver.evaluator import Evaluator
from rlhf_algos.driver.learners import Learners
from rlhf_algos.driver.live_source import LiveSource
from rlhf_algos.driver.publication import Publication
from rlhf_algos.driver.saved_source import SavedBatches, SavedSource
from rlhf_algos.driver.source import BatchSource
from rlhf_algos.weight_sync import Channel


@dataclass(frozen=True)
class Processes:
    """What RLlib has started for an algorithm; a group of actors is None where there are none.

    Attributes:
        rollout: the rollout actors.
        evaluation: actors of evaluation's own.
        learners: the ranks.
        saved: batches to train on in place of rollout actors.
    """

    rollout: EnvRunnerGroup | None
    evaluation: EnvRunnerGroup | None
    learners: LearnerGroup
    saved: SavedBatches | None


@dataclass(frozen=True)
class Parts:
    """What one run works with.

    Attributes:
        learners: that train.
        publication: of their weights.
        source: of the batches.
        evaluator: None if nobody could play an evaluation.
        training: the rollout actors; None on saved batches.
        evaluating: actors of evaluation's own; None without.
    """

    learners: Learners
    publication: Publication
    source: BatchSource
    evaluator: Evaluator | None
    training: Crew | None
    evaluating: Crew | None

    @property
    def crews(self) -> list[Crew]:
        """All actors."""
        return [crew for crew in (self.training, self.evaluating) if crew is not None]

    def required_evaluator(self) -> Evaluator:
        """The evaluator.

        Raises:
            ValueError: if there is none.
        """
        if self.evaluator is None:
            raise ValueError(
                "evaluate() has no engine: offline_data(input_=...) starts no rollout actor. Set "
                "evaluation(evaluation_num_env_runners=1)."
            )
        return self.evaluator

    def restore_actors(self, group: EnvRunnerGroup | None) -> list[int]:
        """Takes actors of a group back that Ray has restarted; rollout actors get configuration and weights.

        Those of evaluation's own get theirs when they are to play. Returns their ids.
        """
        if group is None:
            return []
        if self.training is not None and group is self.training.group:
            return self.publication.restore_actors()
        return list(group.probe_unhealthy_env_runners())


def compose(
    processes: Processes,
    config: LanguageModelAlgorithmConfig,
    evaluation_config: LanguageModelAlgorithmConfig | None,
    *,
    number: int,
    channel: Channel,
    marks: Path,
) -> Parts:
    """The parts of a run at its beginning; no process is called yet.

    Args:
        processes: of the algorithm.
        config: of the run.
        evaluation_config: of its evaluations; needed for actors of their own.
        number: of the configuration; 0 is the one that the processes were started with.
        channel: of the weights.
        marks: folder for the files in which actors note the running episode.
    """
    patience_s = config.env_runner_restore_timeout_s
    training, own = (
        None if group is None else Crew(group, of_group, number)
        for group, of_group in ((processes.rollout, config), (processes.evaluation, evaluation_config))
    )
    players = own or training
    publication = Publication(
        channel,
        processes.learners,
        training,
        is_received=players is not None,
        injection=config.mismatch_injected(),
        seed=config.run_seed(),
    )
    source: BatchSource
    if training is None:
        source = SavedSource(cast(SavedBatches, processes.saved))
    else:
        size = config.prompts_per_iteration
        source = LiveSource(
            training, publication, prompts_per_iteration=size, patience_s=patience_s, marks=marks / "sampling"
        )
    evaluator = None
    if players is not None:
        evaluator = Evaluator(
            players,
            publication,
            source,
            num_problems=config.evaluation_duration,
            greedy=config.greedy_evaluation,
            patience_s=patience_s,
            marks=marks / "evaluating",
        )
    return Parts(Learners(processes.learners), publication, source, evaluator, training, own)
