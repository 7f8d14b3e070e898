"""Evaluation on held-out problems, on the rollout actors or on actors of its own."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rlhf_algos.algorithms.base import weights
from rlhf_algos.algorithms.base.metrics import rollout_metrics
from rlhf_algos.algorithms.base.remote import on_env_runners
from rlhf_algos.batch import RolloutBatch


class EvaluationOnRolloutActors(Algorithm):
    """`evaluate()` without a second set of engines.

    With `evaluation(evaluation_num_env_runners=0)`, the default, the rollout actors play the first
    `evaluation_duration` problems of the evaluation environment, each once sampled and once greedily; with more,
    RLlib's own evaluation actors do.
    """

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: Any) -> bool:
        """Only on request: by default RLlib would start a second engine in the driver."""
        return eval_config.evaluation_num_env_runners > 0

    def _before_evaluate(self) -> None:
        """Gives evaluation actors the current weights; RLlib's own way would send them through the driver."""
        if self.eval_env_runner_group is not None:
            weights.distribute(self.eval_env_runner_group, self._shared_weights, self._weight_version)

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Plays the evaluation problems with the current weights.

        Returns:
            `{"env_runners": {"episode_return_mean": ..., "greedy_return_mean": ..., ...}}`, of the trainer's policy.
        """
        if self.eval_env_runner_group is not None:
            return super().evaluate(parallel_train_future)
        if self.env_runner_group is None:
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

    def _evaluation_results(self) -> dict[str, float]:
        """Of the trainer's policy; with an injected mismatch also those of the sampler's, as `sampler_*`."""
        if not self.config.mismatch_injected().active:
            return self._play_both_ways()
        sampler = self._play_both_ways()
        weights.distribute(self.env_runner_group, self._shared_weights, self._weight_version)
        try:
            results = self._play_both_ways()
        finally:
            self._distribute()
        names = ("episode_return_mean", "greedy_return_mean")
        return results | {f"sampler_{name}": sampler[name] for name in names if name in sampler}

    def _play_both_ways(self) -> dict[str, float]:
        results = rollout_metrics(self._play_evaluation(greedy=False))
        if self.config.greedy_evaluation:
            results["greedy_return_mean"] = rollout_metrics(self._play_evaluation(greedy=True))["episode_return_mean"]
        return results

    def _play_evaluation(self, *, greedy: bool) -> RolloutBatch:
        actors = self.env_runner_group.healthy_env_runner_ids()
        if not actors:
            self.restore_env_runners(self.env_runner_group)
            actors = self.env_runner_group.healthy_env_runner_ids()
        problems = range(self.config.evaluation_duration)
        results = on_env_runners(
            self.env_runner_group,
            lambda runner, indices: runner.sample_evaluation(indices, greedy=greedy),
            actors=actors,
            kwargs_by_actor={actor: {"indices": problems[place :: len(actors)]} for place, actor in enumerate(actors)},
        )
        if len(results) < len(actors):
            raise RuntimeError(
                f"{len(actors) - len(results)} of {len(actors)} rollout actors died during the evaluation, so its "
                "problems are not complete; call evaluate() again."
            )
        return RolloutBatch.concatenate(results.values())
