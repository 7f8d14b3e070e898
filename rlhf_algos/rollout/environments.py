"""Where episodes are scored: an interface that allows other processes, and the environments of this one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium

from rlhf_algos.envs import Prompt, finite_reward
from rlhf_algos.rollout.groups import TaskFacts, facts_of, task_of
from rlhf_algos.rollout.plans import Episode
from rlhf_algos.rollout.scoring_mark import ScoringMark, mark_at

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """What an episode begins with: the prompt, and the task that it is of."""

    prompt: Prompt
    task: TaskFacts


@dataclass(frozen=True)
class Score:
    """What an episode earned: a finite number, or None if nobody could say."""

    key: str
    reward: float | None


class Environments(Protocol):
    """As many environments of one task as episodes are played at once, wherever they run."""

    def facts(self) -> TaskFacts:
        """Of the task; makes an environment if there is none yet."""
        ...

    def reset(self, episodes: Sequence[Episode], *, mark: Path | None = None) -> list[Opening]:
        """Begins the episodes, each in an environment of its own; those of an earlier call are over.

        Args:
            episodes: to begin.
            mark: file that names the running episode, if the process ends in it.
        """
        ...

    def submit(self, key: str, response: str) -> None:
        """Hands a response over to be scored; returns at once where others score it."""
        ...

    def collect(self, *, wait: bool = False) -> list[Score]:
        """Scores that are there; at least one with `wait`, unless no response is being scored.

        Raises:
            Exception: what the environment raised, with a note that names the episode, unless such responses are left
                out.
            ValueError: if an environment asks for another turn.
        """
        ...

    def close(self) -> None:
        """Closes every environment."""
        ...


def require_problems(environments: Environments, count: int, *, asked: int) -> None:
    """Raises unless an evaluation's environment can be made and has so many problems.

    Args:
        environments: of the evaluation.
        count: problems that are needed.
        asked: the `evaluation_duration`, for the message.

    Raises:
        ValueError: if there are fewer.
    """
    try:
        task = environments.facts()
    except Exception as error:
        error.add_note(
            "while making the environment of the evaluation, which gets split='heldout' if its constructor takes a "
            "`split`; evaluation(evaluation_config={'env_config': {...}}) changes its arguments"
        )
        raise
    if task.num_problems is not None and count > task.num_problems:
        raise ValueError(
            f"evaluation(evaluation_duration={asked}): {task.name} has {task.num_problems} problems in "
            f"split={task.split!r}; ask for that many at most."
        )


class LocalEnvironments:
    """Environments in this process, kept from one plan to the next; a response is scored when it is collected.

    Args:
        create: makes one environment.
        unscorable: what becomes of a response that can't be scored: "stop" raises, "leave_out" goes on.
    """

    def __init__(self, create: Callable[[], gymnasium.Env[Any, str]], *, unscorable: str) -> None:
        self._create, self._unscorable = create, unscorable
        self._pool: list[gymnasium.Env[Any, str]] = []
        self._playing: dict[str, tuple[Episode, gymnasium.Env[Any, str]]] = {}
        self._submitted: list[tuple[str, str]] = []
        self._mark: ScoringMark | None = None

    def first(self) -> gymnasium.Env[Any, str]:
        """One of the environments; made if there is none yet."""
        return self._take(1)[0]

    def facts(self) -> TaskFacts:
        """Of the task; makes an environment if there is none yet."""
        return facts_of(self.first())

    def reset(self, episodes: Sequence[Episode], *, mark: Path | None = None) -> list[Opening]:
        """See `Environments.reset`."""
        self._mark = mark_at(mark)
        self._submitted.clear()
        environments = self._take(len(episodes))
        self._playing = {
            episode.key: (episode, environment) for episode, environment in zip(episodes, environments, strict=True)
        }
        openings = []
        for episode, environment in self._playing.values():
            with self._marked(episode):
                prompt, _ = environment.reset(**episode.reset)
            openings.append(Opening(prompt, facts_of(environment)))
        return openings

    def submit(self, key: str, response: str) -> None:
        """Keeps the response until scores are collected."""
        self._submitted.append((key, response))

    def collect(self, *, wait: bool = False) -> list[Score]:
        """Scores all that was submitted; see `Environments.collect`."""
        submitted, self._submitted = self._submitted, []
        return [self._score(key, response) for key, response in submitted]

    def close(self) -> None:
        """Closes every environment."""
        for environment in self._pool:
            environment.close()
        self._pool.clear()

    def _score(self, key: str, response: str) -> Score:
        episode, environment = self._playing.pop(key)
        who = f"sample {episode.sample} of group {episode.group}"
        try:
            with self._marked(episode):
                _, value, terminated, truncated, _ = environment.step(response)
            # A step of the task's own and wrappers can return anything.
            reward = finite_reward(value, task_of(environment).name, f"{who}, response={response!r}")
        # A reward that calls sys.exit() is one that could not be computed, not the end of this process.
        except (Exception, SystemExit) as error:
            if self._unscorable == "stop":
                error.add_note(f"while scoring {who}; the run was stopped")
                raise
            logger.warning(
                "Sample %d of group %d can't be scored and is left out: %r", episode.sample, episode.group, error
            )
            return Score(key, None)
        if not (terminated or truncated):
            raise ValueError(
                f"{environment.unwrapped} asked for another turn after sample {episode.sample}; this rollout actor "
                "plays single-turn environments: return terminated=True from step()."
            )
        return Score(key, reward)

    def _marked(self, episode: Episode) -> AbstractContextManager[None]:
        return nullcontext() if self._mark is None else self._mark.of(episode.group, episode.sample)

    def _take(self, count: int) -> list[gymnasium.Env[Any, str]]:
        """`count` environments: every running episode holds its own state."""
        while len(self._pool) < count:
            self._pool.append(self._create())
        return self._pool[:count]
