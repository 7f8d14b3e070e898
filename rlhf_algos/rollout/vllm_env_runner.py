"""The rollout actor: RLlib's face of a vLLM engine, and of the player that plays episodes on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_algos.importing import garbage_collection_paused

# Thousands of modules, which a new process waits for.
with garbage_collection_paused():
    import gymnasium
    import torch
    from ray.rllib.core import DEFAULT_MODULE_ID
    from ray.rllib.env import INPUT_ENV_SPACES
    from ray.rllib.env.env_runner import EnvRunner
    from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

    from rlhf_algos.batch import RolloutBatch
    from rlhf_algos.envs import PromptSpace, UnicodeText
    from rlhf_algos.rollout.counted_start import counted_start
    from rlhf_algos.rollout.engine import Engine
    from rlhf_algos.rollout.engine_weights import EngineWeights
    from rlhf_algos.rollout.environments import require_problems
    from rlhf_algos.rollout.groups import split_facts, task_of
    from rlhf_algos.rollout.plans import Episode, plan_of_evaluation, plan_of_groups
    from rlhf_algos.rollout.player import Player
    from rlhf_algos.rollout.router_layout import router_layout
    from rlhf_algos.rollout.settings import RolloutConfig, RolloutSettings
    from rlhf_algos.rollout.stages import Stage, stages_of
    from rlhf_algos.rollout.vllm_engine import VLLMEngine
    from rlhf_algos.weight_sync import MismatchInjection, checkpoint_layout

#: What an actor's call returns: a batch, or None if it played nothing, and the ids whose prompt leaves no room.
Played = tuple[RolloutBatch | None, list[int]]


def start_vllm(settings: RolloutSettings) -> Engine:
    """The configured engine, with the weights on disk."""
    own = {"trust_remote_code": settings.trust_remote_code, "seed": 0, "skip_tokenizer_init": True}
    return VLLMEngine(settings.model_path, own | dict(settings.engine_args), record_routes=settings.record_routes)


class VLLMEnvRunner(EnvRunner):
    """Samples groups of responses with vLLM and scores them with the configured environment.

    Which tokens a sample gets depends on the run's seed, its group and its place in the group; neither on which
    actor samples it nor on how many actors there are.

    Args:
        config: RLlib's, asked for its `rollout_settings()`.
        engine: samples in place of a vLLM that is started here.
        kwargs: RLlib's.

    Attributes:
        settings: what the actor is configured with.
        configuration: number of that configuration, counted by the driver.
        engine: that samples.
        checkpoint_layout: names and shapes of the weights that `load_weights` takes.
    """

    def __init__(self, *, config: RolloutConfig, engine: Engine | None = None, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self._stages: tuple[Stage, ...] = ()
        # RLlib takes an error in here for a failure of the machine, restarts the actor and hides the error. Kept, it
        # reaches the driver with the first call.
        self._broken: Exception | SystemExit | None = None
        try:
            with garbage_collection_paused(), counted_start(kwargs.get("log_dir")):
                self._construct(config.rollout_settings(), engine)
        except (Exception, SystemExit) as error:
            self._broken = error

    def _construct(self, settings: RolloutSettings, engine: Engine | None) -> None:
        torch.set_num_threads(settings.threads)
        self._take_over(settings, 0)
        path, trust = settings.model_path, settings.trust_remote_code
        self._router = router_layout(path, trust_remote_code=trust) if settings.record_routes else None
        self.engine = engine or start_vllm(settings)
        self.checkpoint_layout = checkpoint_layout(path)

    def configure(self, config: RolloutConfig, number: int = 0) -> None:
        """Takes over everything in a configuration but the engine; the actor has no weights afterwards.

        A configuration with another model or other engine arguments needs another actor.

        Args:
            config: of training, or of an evaluation.
            number: of the configuration, counted by the driver; 0 is the one that an actor is made with.
        """
        self.config = config
        self._take_over(config.rollout_settings(), number)

    def _take_over(self, settings: RolloutSettings, number: int) -> None:
        self.settings, self.configuration = settings, number
        self._weights = EngineWeights()
        self.stop()
        self._stages = self._training, self._evaluation = stages_of(settings)
        self.make_env()

    # ---- what RLlib asks of an EnvRunner ----------------------------------------------------------------------

    def make_env(self) -> None:
        """Makes one environment, so that a broken one is noticed before the engine starts."""
        self.env = (self._evaluation if self.settings.in_evaluation else self._training).environments.first()
        if self.settings.evaluation_is_due:
            # Now, and not at the first evaluation.
            self._require_problems(self.settings.evaluation_duration)

    def get_spaces(self) -> dict[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]:
        """Observation and action space of every prompt environment."""
        spaces = (PromptSpace(), UnicodeText())
        return {INPUT_ENV_SPACES: spaces, DEFAULT_MODULE_ID: spaces}

    def assert_healthy(self) -> None:
        """Nothing to check: `require_constructed` raises what went wrong, where RLlib does not swallow it."""

    def require_constructed(self) -> None:
        """Raises the error that kept this actor from being built, if there was one."""
        if self._broken is not None:
            raise self._broken

    def sample(self, **kwargs: Any) -> list[RolloutBatch]:
        """Raises RuntimeError: RLlib's own call could not say what to play."""
        raise RuntimeError(
            "A rollout actor is told which groups or problems to play, and with which weights: sample_groups and "
            "sample_evaluation."
        )

    def get_metrics(self) -> Any:
        """Metrics of the `sample` calls since the last call."""
        return self.metrics.reduce()

    def get_state(self, components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """A rollout actor's only state is the version of its weights."""
        return {WEIGHTS_SEQ_NO: self.weight_version}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Weights don't come this way (see `rlhf_algos.weight_sync`), so there is nothing to set."""

    def stop(self) -> None:
        """Closes the environments."""
        for stage in self._stages:
            stage.environments.close()

    # ---- weights ----------------------------------------------------------------------------------------------

    @property
    def weight_version(self) -> int | None:
        """Version of the weights in the engine; None before the first arrived."""
        return self._weights.version

    @property
    def injection(self) -> MismatchInjection | None:
        """What was done to the weights on purpose; None before the first arrived."""
        return self._weights.injection

    def load_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, injection: MismatchInjection
    ) -> int:
        """Replaces the engine's weights and acknowledges with the version; see `EngineWeights.load`."""
        self._weights.load(self.engine, weights, version, injection=injection)
        return version

    def use_loaded_weights(self) -> None:
        """Makes the weights that the engine loaded from disk version 0, if no others have arrived."""
        self._weights.use_those_from_disk()

    # ---- sampling ---------------------------------------------------------------------------------------------

    def split_drawn(self) -> dict[str, str]:
        """Which problems this actor's own environment draws, and by which rule they were split."""
        return split_facts(task_of(self.env))

    def sample_groups(self, group_ids: Sequence[int], *, weight_version: int, mark: Path | None = None) -> Played:
        """Plays `group_size` episodes for each group.

        Args:
            group_ids: which groups; an id decides the group's prompt and noise.
            weight_version: the version the driver believes this actor to have.
            mark: file that names the running episode, if this process ends in it.

        Returns:
            The batch (None if no group could be played), and the ids of groups whose prompt does not fit.

        Raises:
            RuntimeError: if the actor has other weights.
        """
        plan = plan_of_groups(group_ids, size=self.settings.group_size, seed=self.settings.training.seed)
        return self._play(self._training, plan, weight_version, mark)

    def sample_evaluation(
        self, indices: Sequence[int], *, greedy: bool, weight_version: int, mark: Path | None = None
    ) -> Played:
        """Plays the evaluation problems with the given indices, one episode each, as the evaluation is configured.

        Args:
            indices: places in the evaluation environment's fixed order of problems; each is its episode's group.
            greedy: take the most probable token instead of sampling.
            weight_version, mark: as for `sample_groups`.

        Raises:
            ValueError: if there are fewer problems than the indices ask for.
            RuntimeError: if the actor has other weights.
        """
        self._weights.require(weight_version, actor=self.worker_index)
        self._require_problems(max(indices, default=-1) + 1)
        plan = plan_of_evaluation(indices, seed=self.settings.evaluation.seed)
        return self._play(self._evaluation, plan, weight_version, mark, greedy=greedy)

    def _play(
        self, stage: Stage, plan: Sequence[Episode], version: int, mark: Path | None, *, greedy: bool = False
    ) -> Played:
        self._weights.require(version, actor=self.worker_index)
        player = Player(
            self.engine, stage.environments, stage.tokenizer, self.settings, stage.play, router=self._router
        )
        player.start(plan, weight_version=version, greedy=greedy, mark=mark)
        return player.advance(), player.too_long

    def _require_problems(self, count: int) -> None:
        require_problems(self._evaluation.environments, count, asked=self.settings.evaluation_duration)
