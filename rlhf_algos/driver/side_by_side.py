"""Learners start while RLlib waits for the rollout actors: both import and load for about as long."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar

import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env import INPUT_ENV_SPACES

from rlhf_algos.envs import PromptSpace, UnicodeText

logger = logging.getLogger(__name__)


class _Starting:
    """Learners that a thread is starting, and what is waited for before them."""

    def __init__(self, start: Callable[[], LearnerGroup], before: Callable[[], object]) -> None:
        self._learners: Future[LearnerGroup] = Future()
        self._before = before
        # Guards who ends the learners: nobody once they are taken, else the thread, or who finds them ready.
        self._lock = threading.Lock()
        self._taken = self._unwanted = False
        # A daemon: Ctrl-C does not wait for it.
        threading.Thread(target=self._run, args=(start,), name="starting learners", daemon=True).start()

    def _run(self, start: Callable[[], LearnerGroup]) -> None:
        try:
            learners = start()
        except BaseException as error:
            if self._unwanted:
                logger.info("Learners that nobody waits for any more did not start: %s", error)
            self._learners.set_exception(error)
            return
        with self._lock:
            self._learners.set_result(learners)
            unwanted = self._unwanted
        if unwanted:
            learners.shutdown()

    def take(self) -> LearnerGroup:
        """The learners, once they have started, or the error that kept them from it."""
        self._before()
        learners = self._learners.result()
        self._taken = True
        return learners

    def shut_down_unless_taken(self) -> None:
        """After another failure: learners that are up are ended, others by their thread as soon as they are."""
        with self._lock:
            if self._taken:
                return
            self._unwanted = True
            ready = self._learners.done() and self._learners.exception() is None
        if ready:
            self._learners.result().shutdown()


# What `config.build_learner_group` hands out: RLlib's `Algorithm.setup` calls it after it has waited for the actors.
_starting: ContextVar[_Starting | None] = ContextVar("learners that are starting", default=None)


@contextmanager
def learners_starting(config: AlgorithmConfig, require_env_runners: Callable[[], object]) -> Iterator[None]:
    """While this lasts, the learners of `config` start in a thread, and `started_learners` waits for them.

    Only on a single machine and without a placement group. In a group (a trial of Tune's) RLlib ties rollout actors to
    bundles, but not learners, who could take an actor's bundle and have it wait without end; on several machines a
    learner could take the only GPU of a machine that way. There the actors are up before the learners start.

    Args:
        config: of the algorithm.
        require_env_runners: raises if an actor is broken; called before the learners are waited for.
    """
    if (
        config.num_learners == 0
        or not config.is_online
        or ray.util.get_current_placement_group() is not None
        or sum(node["Alive"] for node in ray.nodes()) > 1
    ):
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
    except BaseException:
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


def forget_locals(error: BaseException | None) -> None:
    """Drops the local variables of what failed: half a group of actors or learners lives as long as one names it."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
