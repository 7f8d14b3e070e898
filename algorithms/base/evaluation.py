"""Evaluation on problems that are not trained on, on the rollout actors or on actors of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rlhf_algos.algorithms.base.evaluation_settings import is_held_out
from rlhf_algos.algorithms.base.metrics import evaluation_metrics
from rlhf_algos.algorithms.base.remote import on_env_runners
from rlhf_algos.algorithms.base.rollouts import Actors, Played, in_order, play_all
from rlhf_algos.rollout.mismatch_injection import NO_INJECTION, MismatchInjection

if TYPE_CHECKING:
    from pathlib import Path


class EvaluationOnRolloutActors(Algorithm):
    """`evaluate()` on either kind of actors, along one path.

    With `evaluation(evaluation_num_env_runners=0)`, the default, the rollout actors play the evaluation, so no second
    set of engines is started; with more, actors of its own do. Problem i is the same one whoever plays it, and each of
    the first `evaluation_duration` is answered once by sampling and once greedily.
    """

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: Any) -> bool:
        """Only on request: by default RLlib would start a second engine in the driver."""
        return eval_config.evaluation_num_env_runners > 0

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Plays the evaluation problems with the current weights.

        Args:
            parallel_train_future: RLlib's; an evaluation beside training takes as long as its problems take.

        Returns:
            `{"env_runners": {"episode_return_mean": ..., "greedy_return_mean": ..., ...}}`, of the trainer's policy.

        Raises:
            ValueError: if there is no engine, or there are fewer problems than `evaluation_duration`.
        """
        if self._evaluating_group() is None:
            raise ValueError(
                "evaluate() has no engine: offline_data(input_=...) starts no rollout actor. Set "
                "evaluation(evaluation_num_env_runners=1)."
            )
        make_callback(
            "on_evaluate_start",
            callbacks_objects=self.callbacks,
            callbacks_functions=self.config.callbacks_on_evaluate_start,
            kwargs={"algorithm": self, "metrics_logger": self.metrics},
        )
        evaluation = {ENV_RUNNER_RESULTS: self._evaluation_results()}
        make_callback(
            "on_evaluate_end",
            callbacks_objects=self.callbacks,
            callbacks_functions=self.config.callbacks_on_evaluate_end,
            kwargs={"algorithm": self, "metrics_logger": self.metrics, "evaluation_metrics": evaluation},
        )
        return evaluation

    _training_splits: list[Mapping[str, str | None]] | None

    def _evaluating_group(self) -> EnvRunnerGroup | None:
        return self.eval_env_runner_group or self.env_runner_group

    def _evaluation_results(self) -> dict[str, Any]:
        """Of the trainer's policy; with an injected mismatch also those of the sampler's, as `sampler_*`."""
        injection = self.config.mismatch_injected()
        with self._publication:
            # Until the evaluation is over, training beside it removes neither.
            version, sampler_version = self._weight_version, self._sampler_version
            self._evaluated_version = min(version, sampler_version)
        try:
            if not injection.active:
                return self._play_both_ways(version, NO_INJECTION)
            sampler = self._play_both_ways(sampler_version, injection)
            results = self._play_both_ways(version, NO_INJECTION)
        finally:
            self._evaluated_version = None
        names = ("episode_return_mean", "greedy_return_mean")
        return results | {f"sampler_{name}": sampler[name] for name in names if name in sampler}

    def _play_both_ways(self, version: int, injection: MismatchInjection) -> dict[str, Any]:
        results = self._play_evaluation(version, injection, greedy=False)
        if self.config.greedy_evaluation:
            greedy = self._play_evaluation(version, injection, greedy=True)
            results["greedy_return_mean"] = greedy["episode_return_mean"]
        return results | {"weight_version": version}

    def _play_evaluation(self, version: int, injection: MismatchInjection, *, greedy: bool) -> dict[str, Any]:
        """Statistics of all problems, each played once, and again at most once if its actor died."""

        def play(runner: Any, ids: list[int], mark: Path | None) -> Played:
            return runner.sample_evaluation(ids, greedy=greedy, weight_version=version, mark=mark)

        problems = range(self.config.evaluation_duration)
        actors = self._evaluating_actors(version, injection)
        batches, too_long, _ = play_all(actors, problems, play, what="evaluation problem")
        if not batches:
            raise ValueError(
                f"None of the {len(problems)} evaluation prompts fits into the model's context; raise "
                "vllm(max_model_len=...) or shorten the prompts."
            )
        batch = in_order(batches, problems)
        played = batch.require_settings().split_facts
        return evaluation_metrics(batch, prompts_too_long=len(too_long)) | {
            "split": played["split"],
            "held_out": float(is_held_out(played, self._splits_trained_on())),
        }

    def _evaluating_actors(self, version: int, injection: MismatchInjection) -> Actors:
        group = cast(EnvRunnerGroup, self._evaluating_group())
        self._bring_up_to_date(group, version, injection)

        def restore() -> None:
            group.probe_unhealthy_env_runners()
            self._bring_up_to_date(group, version, injection)

        return Actors(
            group=group,
            restore=restore,
            patience_s=self.config.env_runner_restore_timeout_s,
            marks=self._shared_weights.folder / "evaluating",
        )

    def _splits_trained_on(self) -> list[Mapping[str, str | None]]:
        """Split and rule of what is trained on: of the training environment as an actor has it, or of saved batches.

        Asked once per configuration: beside training, an actor would answer after its whole sample.
        """
        if self._training_splits is not None:
            return self._training_splits
        if self.offline_data is not None:
            splits: list[Mapping[str, str | None]] = self.offline_data.splits()
        else:
            answers = on_env_runners(self.env_runner_group, lambda runner: runner.split_drawn())
            # With no actor to ask, nothing is known, and so nothing is called held out.
            splits = list(answers.values()) or [{}]
        self._training_splits = splits
        return splits
