"""The configuration that all algorithms share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.util.debug import log_once

from rlhf_algos.algorithms.checks import check_config
from rlhf_algos.algorithms.evaluation_settings import check_evaluation_config
from rlhf_algos.algorithms.learner_sections import LearnerSections
from rlhf_algos.algorithms.option_checks import check_options
from rlhf_algos.algorithms.paths import absolute_paths, in_each_choice
from rlhf_algos.algorithms.rollout_sections import RolloutSections
from rlhf_algos.driver.placement import start_ray_if_needed
from rlhf_algos.driver.saved_source import DECIDING_SETTINGS, SavedBatches
from rlhf_algos.driver.side_by_side import started_learners
from rlhf_algos.envs import PromptSpace, UnicodeText


class LanguageModelAlgorithmConfig(RolloutSections, LearnerSections):
    """An `AlgorithmConfig` whose environment runners are vLLM engines and whose learners are DeepSpeed ranks.

    Values are checked when the algorithm is built (`build_algo`, or by Tune before a trial is placed), so that
    `tune.grid_search` can stand anywhere until then.
    """

    # ---- sections -----------------------------------------------------------------------------------------------

    def debugging(self, *, save_batches: str | None = NotProvided, **kwargs: Any) -> Self:
        """Sets RLlib's debugging options, and what is kept of each iteration.

        Args:
            save_batches: folder to which the batch of each training step is written, with everything needed to train on
                it again: `offline_data(input_=folder)` does, `rlhf-algos replay` compares corrections on it. A folder
                that holds another run's batches is refused. A trial of Tune writes into a folder of its own below it.
            kwargs: RLlib's own: `seed`, `log_level`, ...
        """
        super().debugging(**kwargs)
        return self._set(save_batches=in_each_choice(absolute_paths, save_batches))

    def offline_data(
        self,
        *,
        input_: str | Path | Sequence[str | Path] = NotProvided,
        accept_different: Sequence[str] = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Trains on saved batches, one per training step, without starting a rollout actor.

        Advantages are computed again from the saved rewards, by this configuration's rule.

        Args:
            input_: saved batches, or folders of them, in the order of training.
            accept_different: settings in which batches may differ from this configuration ("model", "temperature",
                "top_p", "top_k"); a difference in any other of these four is an error, because it decides log p.
            kwargs: none of RLlib's other options has a meaning here.
        """
        if kwargs:
            raise ValueError(
                f"offline_data({', '.join(kwargs)}): only input_ and accept_different have a meaning for saved batches."
            )
        self.num_env_runners = 0
        self.offline_data_class = SavedBatches
        # Spaces that RLlib otherwise asks of a rollout actor.
        self.observation_space, self.action_space = PromptSpace(), UnicodeText()
        self._is_online = False
        if accept_different is not NotProvided:
            unknown = sorted(set(accept_different) - set(DECIDING_SETTINGS))
            if unknown or isinstance(accept_different, str):
                raise ValueError(
                    f"offline_data(accept_different={accept_different!r}) must be a list of some of "
                    f"{', '.join(DECIDING_SETTINGS)}."
                )
        return self._set(input_=in_each_choice(absolute_paths, input_), accept_different=accept_different)

    # ---- building ----------------------------------------------------------------------------------------------

    def build_learner_group(self, **kwargs: Any) -> LearnerGroup:
        """Starts learners; within an algorithm's `setup` returns those that are starting already."""
        return started_learners() or super().build_learner_group(**kwargs)

    def build_algo(self, *args: Any, **kwargs: Any) -> Any:
        """Starts the algorithm's processes; Ray too, on the loopback address, unless there is one to use."""
        start_ray_if_needed()
        return super().build_algo(*args, **kwargs)

    def validate(self) -> None:
        """Checks every option and combination, and that the environments can be found.

        Values become plain and paths absolute; nothing else is stored.

        Raises:
            ValueError: names the option, its value and what to do.
        """
        check_evaluation_config(self)
        check_options(self)
        # RLlib would advise to switch its new interfaces off, which nothing here works without.
        log_once(f"{getattr(self.algo_class, '__name__', self.algo_class)}_on_new_api_stack")
        super().validate()
        check_config(self)
        if not self.in_evaluation:
            self.require_environments()
