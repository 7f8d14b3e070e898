"""Evaluation on problems that are not trained on, on the rollout actors or on actors of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_algos.driver.batch_metrics import evaluation_metrics
from rlhf_algos.driver.crew import Crew, Weights
from rlhf_algos.driver.held_out import is_held_out
from rlhf_algos.driver.playing import Actors, Played, in_order, play_all
from rlhf_algos.driver.publication import Publication
from rlhf_algos.driver.source import BatchSource

# What is also said of the sampler's policy, where a mismatch is injected.
_OF_SAMPLER = ("episode_return_mean", "greedy_return_mean")


class Evaluator:
    """Plays the evaluation problems on either kind of actors, along one path.

    With `evaluation(evaluation_num_env_runners=0)`, the default, the rollout actors play, so no second set of engines
    is started; with more, actors of its own do. Problem i is the same one whoever plays it, and each is answered once
    by sampling and once greedily.

    Args:
        crew: that plays.
        publication: of the weights that are evaluated.
        source: of the batches that are trained on, which says what is not held out.
        num_problems: that are played, the first ones.
        greedy: whether each is answered greedily, too.
        patience_s: how long to wait with no actor alive.
        marks: path and first part of the name of the files in which actors note the running episode.
    """

    def __init__(
        self,
        crew: Crew,
        publication: Publication,
        source: BatchSource,
        *,
        num_problems: int,
        greedy: bool,
        patience_s: float,
        marks: Path,
    ) -> None:
        self._crew, self._publication, self._source = crew, publication, source
        self._problems, self._greedy = range(num_problems), greedy
        self._patience_s, self._marks = patience_s, marks

    def evaluate(self) -> dict[str, Any]:
        """Statistics of the trainer's policy; with an injected mismatch also those of the sampler's, as `sampler_*`.

        Raises:
            ValueError: if there are fewer problems, or none of their prompts fits.
        """
        with self._publication.kept_for_evaluation() as (trainer, sampler):
            if not sampler.channel.injection.active:
                return self._play_both_ways(trainer)
            of_sampler = self._play_both_ways(sampler)
            results = self._play_both_ways(trainer)
        return results | {f"sampler_{name}": of_sampler[name] for name in _OF_SAMPLER if name in of_sampler}

    def _play_both_ways(self, weights: Weights) -> dict[str, Any]:
        results = self._play(weights, greedy=False)
        if self._greedy:
            results["greedy_return_mean"] = self._play(weights, greedy=True)["episode_return_mean"]
        return results | {"weight_version": weights.version}

    def _play(self, weights: Weights, *, greedy: bool) -> dict[str, Any]:
        """Statistics of all problems, each played once, and again at most once if its actor died."""

        def play(runner: Any, ids: list[int], mark: Path | None) -> Played:
            return runner.sample_evaluation(ids, greedy=greedy, weight_version=weights.version, mark=mark)

        # Each time: an actor that idled in the last play may have been restarted since.
        self._crew.bring_up_to_date(weights)
        actors = Actors(self._crew.group, lambda: self._crew.restore(weights), self._patience_s, self._marks)
        batches, too_long, _ = play_all(actors, self._problems, play, what="evaluation problem")
        if not batches:
            raise ValueError(
                f"None of the {len(self._problems)} evaluation prompts fits into the model's context; raise "
                "vllm(max_model_len=...) or shorten the prompts."
            )
        batch = in_order(batches, self._problems)
        played = batch.require_settings().split_facts
        return evaluation_metrics(batch, prompts_too_long=len(too_long)) | {
            "split": played["split"],
            "held_out": float(is_held_out(played, self._source.splits())),
        }
