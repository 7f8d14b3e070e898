"""Plays planned episodes on an engine and on environments, whichever they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.rollout.assembly import ScoredResponse, assemble
from rlhf_algos.rollout.engine import Engine, Generation, GenerationRequest
from rlhf_algos.rollout.environments import Environments, Opening
from rlhf_algos.rollout.groups import require_same_prompts
from rlhf_algos.rollout.plans import Episode
from rlhf_algos.rollout.prompts import PromptTokenizer
from rlhf_algos.rollout.router_layout import RouterLayout
from rlhf_algos.rollout.sampling import SamplingSettings
from rlhf_algos.rollout.settings import PlaySettings, RolloutSettings

logger = logging.getLogger(__name__)


class Player:
    """Plays one plan after another.

    environments.reset -> tokens -> engine.add; engine.step -> text -> environments.submit; environments.collect -> done

    Args:
        engine: samples tokens.
        environments: give prompts and scores.
        tokenizer: of the model.
        settings: of the actor.
        play: its settings for what is played.
        router: where the engine's routes stand; None without routes.

    Attributes:
        too_long: groups of the plan whose prompt leaves no room for a response, each once.
    """

    def __init__(
        self,
        engine: Engine,
        environments: Environments,
        tokenizer: PromptTokenizer,
        settings: RolloutSettings,
        play: PlaySettings,
        *,
        router: RouterLayout | None = None,
    ) -> None:
        self._engine, self._environments, self._tokenizer = engine, environments, tokenizer
        self._settings, self._play, self._router = settings, play, router
        self._sampling, self._weight_version = play.sampling, 0
        self._plan: dict[str, tuple[Episode, Opening]] = {}
        self._generations: dict[str, Generation] = {}
        self._scored: dict[str, ScoredResponse] = {}
        self._returned: set[str] = set()
        self.too_long: list[int] = []

    @property
    def num_unfinished(self) -> int:
        """Episodes of the plan that are being generated or scored."""
        return len(self._plan) - len(self._scored)

    def start(
        self, plan: Sequence[Episode], *, weight_version: int, greedy: bool = False, mark: Path | None = None
    ) -> None:
        """Begins the episodes and queues their requests; nothing is sampled yet.

        Args:
            plan: what to play.
            weight_version: of the engine's weights.
            greedy: take the most probable token instead of sampling.
            mark: file that names the running episode, if the process ends in it.

        Raises:
            ValueError: if members of a group get different prompts.
            RuntimeError: if episodes of the last plan are unfinished.
        """
        if self.num_unfinished:
            raise RuntimeError(f"{self.num_unfinished} episodes of the last plan are unfinished.")
        self._forget()
        self._weight_version = weight_version
        self._sampling = self._play.sampling.greedy() if greedy else self._play.sampling
        with self._all_or_nothing():
            # All resets before the first request: nothing is generated for a group that is none.
            for request in self._requests(plan, self._environments.reset(plan, mark=mark)):
                self._engine.add(request)
        if self.too_long:
            logger.warning(
                "The prompts of groups %s leave no room for a response in max_model_len=%d and were not sampled.",
                self.too_long,
                self._engine.max_model_len,
            )

    def advance(self, until: int | None = None) -> RolloutBatch | None:
        """Plays on, and returns the episodes that finished since the last call.

        Args:
            until: stop as soon as so many episodes of the plan are finished; None finishes all.

        Returns:
            Whole episodes in the plan's order, whatever order they finished in; None if there are none.

        Raises:
            Exception: what the environments raise; nothing of the plan goes on then.
            RuntimeError: if the engine recorded something else than asked, or lost a request.
        """
        wanted = len(self._plan) if until is None else min(until, len(self._plan))
        with self._all_or_nothing():
            while len(self._scored) < wanted:
                self._step()
        new = [key for key in self._plan if key in self._scored and key not in self._returned]
        if not new:
            return None
        self._returned.update(new)
        task = self._plan[new[0]][1].task
        return assemble(
            [self._scored[key] for key in new],
            self._sampling,
            router=self._router,
            settings=self._settings.sampled_with(self._play, self._sampling, task),
        )

    def _step(self) -> None:
        if self._engine.num_running:
            for key, generation in self._engine.step():
                self._generations[key] = generation
                special_tokens = self._plan[key][1].task.special_tokens_in_response
                text = self._tokenizer.decode(generation.token_ids, special_tokens=special_tokens)
                self._environments.submit(key, text)
        scores = self._environments.collect(wait=not self._engine.num_running)
        if not scores and not self._engine.num_running:
            lost = [episode.sample for key, (episode, _) in self._plan.items() if key not in self._scored]
            raise RuntimeError(f"Samples {lost} are neither being generated nor scored.")
        for score in scores:
            episode = self._plan[score.key][0]
            generation = self._generations.pop(score.key)
            self._scored[score.key] = ScoredResponse(
                episode.sample, episode.group, generation, score.reward, self._weight_version
            )

    def _requests(self, plan: Sequence[Episode], openings: Sequence[Opening]) -> list[GenerationRequest]:
        """Of the episodes that have room for a response; they become the plan, and the others' groups are noted."""
        if openings:
            prompts = [opening.prompt for opening in openings]
            require_same_prompts([episode.group for episode in plan], prompts, openings[0].task.name)
        requests = []
        for episode, opening in zip(plan, openings, strict=True):
            control_tokens = opening.task.control_tokens_in_prompt
            prompt_ids = self._tokenizer.encode(opening.prompt, control_tokens=control_tokens)
            if len(prompt_ids) < self._engine.max_model_len:
                self._plan[episode.key] = episode, opening
                requests.append(self._request(episode, prompt_ids))
            elif episode.group not in self.too_long:
                self.too_long.append(episode.group)
        return requests

    def _request(self, episode: Episode, prompt_ids: list[int]) -> GenerationRequest:
        sampling, engine = self._sampling, self._engine
        return GenerationRequest(
            key=episode.key,
            prompt_ids=prompt_ids,
            max_tokens=min(engine.max_model_len - len(prompt_ids), sampling.max_response_tokens),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            num_logprobs=num_logprobs(sampling, engine.vocabulary_size),
            stop_token_ids=tuple(sorted(self._tokenizer.end_ids)),
            seed=episode.seed,
        )

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """After an error nothing of the plan goes on."""
        try:
            yield
        except BaseException:
            self._engine.abort_all()
            self._forget()
            raise

    def _forget(self) -> None:
        self._plan, self._generations, self._scored, self._returned, self.too_long = {}, {}, {}, set(), []


def num_logprobs(sampling: SamplingSettings, vocabulary_size: int) -> int:
    """How many entries of the distribution an engine must return for what is to be recorded."""
    if not sampling.truncates:
        return min(sampling.record_head, vocabulary_size)
    # Tokens that tie with the last one kept are kept too, and more than top_k come back. With top-p alone any number
    # may be left.
    return min(2 * sampling.top_k + 8, vocabulary_size) if sampling.top_k else vocabulary_size
