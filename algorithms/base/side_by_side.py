"""Learners start while RLlib waits for the rollout actors: both import and load for about as long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import ray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env import INPUT_ENV_SPACES

from rlhf_algos.envs import PromptSpace, UnicodeText

if TYPE_CHECKING:
    from rlhf_algos.algorithms.base.config import LanguageModelAlgorithmConfig


class _Starting:
    """Learners that a thread is starting, and what is waited for before them."""

    def __init__(self, start: Callable[[], LearnerGroup], before: Callable[[], object]) -> None:
        self._learners: Future[LearnerGroup] = Future()
        self._before = before
        self._taken = False
        # A daemon: Ctrl-C does not wait for it.
        threading.Thread(target=self._run, args=(start,), name="starting learners", daemon=True).start()

    def _run(self, start: Callable[[], LearnerGroup]) -> None:
        try:
            self._learners.set_result(start())
        except BaseException as error:
            self._learners.set_exception(error)

    def take(self) -> LearnerGroup:
        """The learners, once they have started, or the error that kept them from it."""
        self._before()
        self._taken = True
        return self._learners.result()

    def shut_down_unless_taken(self) -> None:
        """After another failure: the learners are ended as soon as they have started."""
        if not self._taken and self._learners.exception() is None:
            self._learners.result().shutdown()


# What `config.build_learner_group` hands out: RLlib's `Algorithm.setup` calls it after it has waited for the actors.
_starting: ContextVar[_Starting | None] = ContextVar("learners that are starting", default=None)


@contextmanager
def learners_starting(
    config: LanguageModelAlgorithmConfig, require_env_runners: Callable[[], object]
) -> Iterator[None]:
    """While this lasts, the learners of `config` start in a thread, and `started_learners` waits for them.

    Only on a single machine. On several, rollout actors must have their places before the learners look for theirs:
    RLlib ties actors to bundles of the placement group, but not learners, who might take an actor's only GPU.

    Args:
        config: of the algorithm.
        require_env_runners: raises if an actor is broken; called before the learners are waited for.
    """
    if config.num_learners == 0 or not config.is_online or sum(node["Alive"] for node in ray.nodes()) > 1:
        yield
        return
    spaces = (PromptSpace(), UnicodeText())
    spec = config.get_multi_rl_module_spec(
        spaces={INPUT_ENV_SPACES: spaces, DEFAULT_MODULE_ID: spaces}, inference_only=False
    )
    starting = _Starting(lambda: config.build_learner_group(rl_module_spec=spec), require_env_runners)
    token = _starting.set(starting)
    try:
        yield
    except Exception:
        starting.shut_down_unless_taken()
        raise
    finally:
        _starting.reset(token)


def started_learners() -> LearnerGroup | None:
    """The learners that are starting, once they have; None if none are.

    Raises:
        Exception: what kept them, or a rollout actor, from starting.
    """
    starting = _starting.get()
    return None if starting is None else starting.take()
