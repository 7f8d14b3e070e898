"""The rollout actor: a vLLM engine that plays episodes of a prompt environment."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from transformers import AutoConfig

from rlhf_algos.batch import RolloutBatch, SampledWith
from rlhf_algos.envs import EnvCreator, Prompt, PromptSpace, UnicodeText, finite_reward
from rlhf_algos.importing import garbage_collection_paused
from rlhf_algos.rollout.assembly import RouterLayout, ScoredResponse, assemble
from rlhf_algos.rollout.counted_start import counted_start
from rlhf_algos.rollout.groups import require_same_prompts, split_facts, task_of
from rlhf_algos.rollout.mismatch_injection import MismatchInjection
from rlhf_algos.rollout.prompts import PromptTokenizer
from rlhf_algos.rollout.sampling import SamplingSettings, request_seed
from rlhf_algos.rollout.scoring_mark import ScoringMark
from rlhf_algos.rollout.vllm_engine import Generation, GenerationRequest, VLLMEngine
from rlhf_algos.routing_replay import RouteReplayer, model_without_weights
from rlhf_algos.weight_sync import checkpoint_layout

logger = logging.getLogger(__name__)

# What is played: groups to train on, or the problems of an evaluation.
TRAINING, EVALUATION = "training", "evaluation"
# Keep the noise of training, of sampled evaluation and of environments apart.
_NOISE = {TRAINING: 0, EVALUATION: 1}
_ENVIRONMENT_NOISE = 2


def router_layout(config: Any) -> RouterLayout:
    """Where the configured model has routers."""
    model_config = AutoConfig.from_pretrained(config.model_path(), trust_remote_code=config.trust_remote_code)
    routers = RouteReplayer(model_without_weights(model_config, trust_remote_code=config.trust_remote_code))
    return RouterLayout(routers.decoder_layers, model_config.num_hidden_layers, routers.num_experts)


def tokenizer_of(config: Any) -> PromptTokenizer:
    """The model's tokenizer, with the configured ids that end a response."""
    return PromptTokenizer(
        config.model_path(), trust_remote_code=config.trust_remote_code, stop_token_ids=config.stop_token_ids
    )


class VLLMEnvRunner(EnvRunner):
    """Samples groups of responses with vLLM and scores them with the configured environment.

    Which tokens a sample gets depends on the run's seed, its group and its place in the group; neither on which
    actor samples it nor on how many actors there are.
    """

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        # RLlib takes an error in here for a failure of the machine, restarts the actor and hides the error. Kept, it
        # reaches the driver with the first call.
        self._broken: Exception | SystemExit | None = None
        try:
            with garbage_collection_paused(), counted_start(kwargs.get("log_dir")):
                self._construct(config)
        except (Exception, SystemExit) as error:
            self._broken = error

    def _construct(self, config: Any) -> None:
        torch.set_num_threads(config.threads_per_env_runner())
        self._environments: dict[str, list[gymnasium.Env[Any, str]]] = {}
        self.configure(config)
        self._router = router_layout(config) if self._sampling.record_routes else None
        self._engine = VLLMEngine(
            config.model_path(),
            {"trust_remote_code": config.trust_remote_code, "seed": 0, "skip_tokenizer_init": True}
            | config.vllm_engine_args(),
            record_routes=self._sampling.record_routes,
        )
        self.checkpoint_layout = checkpoint_layout(config.model_path())

    def configure(self, config: Any, number: int = 0) -> None:
        """Takes over everything in a configuration but the engine; the actor has no weights afterwards.

        A configuration with another model or other engine arguments needs another actor.

        Args:
            config: of training, or of an evaluation.
            number: of the configuration, counted by the driver; 0 is the one that an actor is made with.
        """
        self.config, self.configuration = config, number
        self._sampling: SamplingSettings = config.sampling_settings()
        self._weight_version: int | None = None
        self.injection: MismatchInjection | None = None
        self._unusable: str | None = None
        self._mark: ScoringMark | None = None
        # An actor of an evaluation trains nothing, and plays the one thing with its own configuration.
        evaluation = config if config.in_evaluation else config.get_evaluation_config_object()
        self._configs: dict[str, Any] = {TRAINING: config, EVALUATION: evaluation}
        self.stop()
        self.make_env()
        training = tokenizer_of(config)
        same = tuple(evaluation.stop_token_ids) == tuple(config.stop_token_ids)
        self._tokenizers = {TRAINING: training, EVALUATION: training if same else tokenizer_of(evaluation)}

    # ---- what RLlib asks of an EnvRunner ----------------------------------------------------------------------

    def make_env(self) -> None:
        """Makes one environment, so that a broken one is noticed before the engine starts."""
        self._creators: dict[str, EnvCreator] = {kind: of_kind.env_creator for kind, of_kind in self._configs.items()}
        self.env = self._take_environments(EVALUATION if self.config.in_evaluation else TRAINING, 1)[0]
        if self.config.evaluation_interval:
            # Now, and not at the first evaluation.
            self._require_problems(self.config.evaluation_duration)

    def split_drawn(self) -> dict[str, str]:
        """Which problems this actor's own environment draws, and by which rule they were split."""
        return split_facts(task_of(self.env))

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
        """RLlib's own call, which could not say what to play.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "A rollout actor is told which groups or problems to play, and with which weights: sample_groups and "
            "sample_evaluation."
        )

    def get_metrics(self) -> Any:
        """Metrics of the `sample` calls since the last call."""
        return self.metrics.reduce()

    def get_state(self, components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """A rollout actor's only state is the version of its weights."""
        return {WEIGHTS_SEQ_NO: self._weight_version}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Weights don't come this way (see `rlhf_algos.weight_sync`), so there is nothing to set."""

    def stop(self) -> None:
        """Closes the environments."""
        for environments in self._environments.values():
            for environment in environments:
                environment.close()
        self._environments.clear()

    # ---- weights ----------------------------------------------------------------------------------------------

    @property
    def weight_version(self) -> int | None:
        """Version of the weights in the engine; None before the first arrived."""
        return self._weight_version

    def load_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        version: int,
        *,
        injection: MismatchInjection,
        seed: int,
    ) -> int:
        """Replaces the engine's weights and acknowledges with the version.

        Args:
            weights: the trainer's, under checkpoint names.
            version: theirs.
            injection: what is done to them first, on purpose.
            seed: of the injected noise, the run's.

        Raises:
            ValueError: if the weights are incomplete; the actor then refuses to sample until a whole set came.
        """
        self._weight_version, self._unusable = None, "its last weight update failed"
        if injection.changes_weights:
            weights = injection.apply(weights, seed=seed)
        self._engine.load_weights(weights)
        self._weight_version, self.injection, self._unusable = version, injection, None
        return version

    def use_loaded_weights(self) -> None:
        """Makes the weights that the engine loaded from disk version 0, if no others have arrived."""
        if self._weight_version is None and self._unusable is None:
            self._weight_version = 0

    # ---- sampling ---------------------------------------------------------------------------------------------

    def sample_groups(
        self, group_ids: Sequence[int], *, weight_version: int, mark: Path | None = None
    ) -> tuple[RolloutBatch | None, list[int]]:
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
        self._require_version(weight_version)
        self._mark = None if mark is None else ScoringMark(mark)
        size = self.config.group_size
        plan = [
            (
                group * size + member,
                group,
                {"seed": request_seed(self._seed_of(TRAINING), _ENVIRONMENT_NOISE, group) % 2**31},
            )
            for group in group_ids
            for member in range(size)
        ]
        return self._play(plan, TRAINING, self._sampling)

    def sample_evaluation(
        self, indices: Sequence[int], *, greedy: bool, weight_version: int, mark: Path | None = None
    ) -> tuple[RolloutBatch | None, list[int]]:
        """Plays the evaluation problems with the given indices, one episode each, as the evaluation is configured.

        Args:
            indices: places in the evaluation environment's fixed order of problems.
            greedy: take the most probable token instead of sampling.
            weight_version: the version the driver believes this actor to have.
            mark: file that names the running episode, if this process ends in it.

        Returns:
            The batch (None if nothing could be played), and the indices of problems whose prompt does not fit.

        Raises:
            ValueError: if there are fewer problems than the indices ask for.
            RuntimeError: if the actor has other weights.
        """
        self._require_version(weight_version)
        self._mark = None if mark is None else ScoringMark(mark)
        self._require_problems(max(indices, default=-1) + 1)
        plan = [(index, index, {"options": {"index": index}}) for index in indices]
        return self._play(plan, EVALUATION, self._configs[EVALUATION].sampling_settings(greedy=greedy))

    def _require_problems(self, count: int) -> None:
        """Raises ValueError unless the evaluation's environment can be made and has so many problems."""
        try:
            task = task_of(self._take_environments(EVALUATION, 1)[0])
        except Exception as error:
            error.add_note(
                "while making the environment of the evaluation, which gets split='heldout' if its constructor takes a "
                "`split`; evaluation(evaluation_config={'env_config': {...}}) changes its arguments"
            )
            raise
        if task.num_problems is not None and count > task.num_problems:
            raise ValueError(
                f"evaluation(evaluation_duration={self.config.evaluation_duration}): {task.name} has "
                f"{task.num_problems} problems in split={task.split!r}; ask for that many at most."
            )

    def _seed_of(self, kind: str) -> int:
        seed = self._configs[kind].seed
        if seed is None:
            raise ValueError("A rollout actor needs debugging(seed=...); an algorithm draws one at its start.")
        return seed

    def _require_version(self, version: int) -> None:
        if self._unusable:
            raise RuntimeError(f"Rollout actor {self.worker_index} can't sample: {self._unusable}.")
        if self._weight_version != version:
            raise RuntimeError(
                f"Rollout actor {self.worker_index} has weight version {self._weight_version}, the driver expects "
                f"{version}. Sampling with other weights would silently be off-policy."
            )

    def _play(
        self,
        plan: Sequence[tuple[int, int, dict[str, Any]]],
        kind: str,
        sampling: SamplingSettings,
    ) -> tuple[RolloutBatch | None, list[int]]:
        """Resets an environment per planned (sample, group, reset arguments), generates, steps, assembles."""
        environments = self._take_environments(kind, len(plan))
        # All resets before the first request: nothing is generated for a group that is none.
        prompts: list[Prompt] = []
        for (sample, group, reset), environment in zip(plan, environments, strict=True):
            with self._marked(group, sample):
                prompts.append(environment.reset(**reset)[0])
        require_same_prompts([group for _, group, _ in plan], prompts, environments)
        by_key: dict[str, tuple[int, int, gymnasium.Env[Any, str]]] = {}
        too_long: list[int] = []
        requests: list[GenerationRequest] = []
        for (sample, group, _), environment, prompt in zip(plan, environments, prompts, strict=True):
            choice = task_of(environment).control_tokens_in_prompt
            prompt_ids = self._tokenizers[kind].encode(prompt, control_tokens=choice)
            request = self._request(sample, prompt_ids, sampling, kind)
            if request is None:
                too_long.append(group)
                continue
            by_key[request.key] = (sample, group, environment)
            requests.append(request)
        too_long = list(dict.fromkeys(too_long))
        if too_long:
            logger.warning(
                "The prompts of groups %s leave no room for a response in max_model_len=%d and were not sampled.",
                too_long,
                self._engine.max_model_len,
            )
        finished: dict[int, ScoredResponse] = {}
        try:
            for request in requests:
                self._engine.add(request)
            while self._engine.num_running:
                for key, generation in self._engine.step():
                    sample, group, environment = by_key[key]
                    with self._marked(group, sample):
                        finished[sample] = self._score(sample, group, environment, generation, kind)
        except BaseException:
            self._engine.abort_all()
            raise
        # In the plan's order, whatever order they finished in.
        ordered = [finished[sample] for sample, _, _ in plan if sample in finished]
        if not ordered:
            return None, too_long
        settings = {
            "model": self.config.language_model_path,
            "environment": str(self._configs[kind].env),
            **split_facts(task_of(environments[0])),
            "mismatch_injection": self.config.mismatch_injected().as_dict(),
        } | sampling.as_dict()
        said = SampledWith.from_dict(settings)
        return assemble(ordered, sampling, router=self._router, settings=said), too_long

    def _request(
        self, sample: int, prompt_ids: list[int], sampling: SamplingSettings, kind: str
    ) -> GenerationRequest | None:
        room = self._engine.max_model_len - len(prompt_ids)
        if room < 1:
            return None
        num_logprobs = sampling.record_head
        if sampling.truncates:
            # With top-p alone any number of tokens may be left.
            # Tokens that tie with the last one kept are kept too, and more than top_k come back.
            num_logprobs = 2 * sampling.top_k + 8 if sampling.top_k else self._engine.vocabulary_size
        return GenerationRequest(
            key=f"{kind}-{sample}",
            prompt_ids=prompt_ids,
            max_tokens=min(room, sampling.max_response_tokens),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            num_logprobs=min(num_logprobs, self._engine.vocabulary_size),
            stop_token_ids=tuple(sorted(self._tokenizers[kind].end_ids)),
            seed=request_seed(self._seed_of(kind), _NOISE[kind], sample),
        )

    def _score(
        self, sample: int, group: int, environment: gymnasium.Env[Any, str], generation: Generation, kind: str
    ) -> ScoredResponse:
        task = task_of(environment)
        text = self._tokenizers[kind].decode(generation.token_ids, special_tokens=task.special_tokens_in_response)
        try:
            _, value, terminated, truncated, _ = environment.step(text)
            # A step of the task's own and wrappers can return anything.
            reward: float | None = finite_reward(
                value, task.name, f"sample {sample} of group {group}, response={text!r}"
            )
        # A reward that calls sys.exit() is one that could not be computed, not the end of this actor.
        except (Exception, SystemExit) as error:
            if self._configs[kind].unscorable_responses == "stop":
                error.add_note(f"while scoring sample {sample} of group {group}; the run was stopped")
                raise
            logger.warning("Sample %d of group %d can't be scored and is left out: %r", sample, group, error)
            reward, terminated, truncated = None, True, False
        if not (terminated or truncated):
            raise ValueError(
                f"{environment.unwrapped} asked for another turn after sample {sample}; this rollout actor plays "
                "single-turn environments: return terminated=True from step()."
            )
        version = -1 if self._weight_version is None else self._weight_version
        return ScoredResponse(sample, group, generation, reward, version)

    def _marked(self, group: int, sample: int) -> AbstractContextManager[None]:
        return nullcontext() if self._mark is None else self._mark.of(group, sample)

    def _take_environments(self, kind: str, count: int) -> list[gymnasium.Env[Any, str]]:
        """`count` environments, kept for the next call: every running episode holds its own state."""
        pool = self._environments.setdefault(kind, [])
        while len(pool) < count:
            pool.append(self._creators[kind]())
        return pool[:count]
