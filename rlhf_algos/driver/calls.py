"""Calls to learners and rollout actors, with every error brought back to the driver."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

Result = TypeVar("Result")

# How long to wait for all ranks before looking whether one has failed.
_LOOK_EVERY_S = 5.0


def on_learners(learner_group: LearnerGroup, function: Callable[[Any], Result]) -> list[Result]:
    """Calls `function(learner)` on every rank at once; returns the results in the order of ranks.

    If one rank raises, the others may wait for it in a collective for as long as the process group's timeout. So
    they are stopped, and the error reaches the driver at once; the learners can't be used after that.

    Raises:
        Exception: the failing rank's error.
    """
    if learner_group.is_local:
        return [result.get() for result in learner_group.foreach_learner(function)]
    ((_, manager),) = learner_group.get_checkpointable_components()
    started = manager.foreach_actor_async(function)
    if started < manager.num_actors():
        raise RuntimeError(f"Only {started} of {manager.num_actors()} learners take requests; an earlier call failed.")
    results: dict[int, Result] = {}
    while len(results) < started:
        for result in manager.fetch_ready_async_reqs(timeout_seconds=_LOOK_EVERY_S):
            if not result.ok:
                learner_group.shutdown()
                raise result.get()
            results[result.actor_id] = result.get()
    return [results[rank] for rank in sorted(results)]


def sendable(error: BaseException) -> Exception:
    """The error, or one of the same text if it can't be sent to another process or would end the receiving one.

    Ray reports an error that does not survive pickling as a failure of its own, and RLlib takes that for a dead actor.
    """
    if isinstance(error, Exception):
        try:
            cloudpickle.loads(cloudpickle.dumps(error))
        except Exception:
            pass
        else:
            return error
    text = "".join(traceback.format_exception(error))
    return RuntimeError(f"{type(error).__name__}: {error}\n{text}")


def on_env_runners(
    group: EnvRunnerGroup,
    function: Callable[..., Result],
    *,
    actors: list[int] | None = None,
    kwargs_by_actor: Mapping[int, Mapping[str, Any]] | None = None,
    healthy_only: bool = True,
) -> dict[int, Result]:
    """Calls `function(runner, **kwargs)` on rollout actors at once.

    An actor that dies is missing from the result (RLlib has it restarted). An actor whose call raises makes this
    raise: RLlib would take an error of the environment for a failure of the machine and try again.

    Args:
        group: the actors.
        function: called with the actor, and its own keyword arguments.
        actors: ids; all healthy ones by default.
        kwargs_by_actor: keyword arguments of each actor.
        healthy_only: False calls `actors` even if an earlier call was lost; those that answer count as healthy again.

    Returns:
        Results by actor id.
    """
    ids = group.healthy_env_runner_ids() if actors is None else list(actors)
    if not ids:
        return {}

    def call(runner: Any, actor: int, arguments: Mapping[str, Any]) -> tuple[int, Any, Exception | None]:
        try:
            runner.require_constructed()
            return actor, function(runner, **arguments), None
        except (Exception, SystemExit) as error:
            return actor, None, sendable(error)

    arguments = kwargs_by_actor or {}
    outcomes = group.foreach_env_runner(
        [call] * len(ids),
        kwargs=[{"actor": actor, "arguments": arguments.get(actor, {})} for actor in ids],
        remote_worker_ids=ids,
        healthy_only=healthy_only,
        mark_healthy=not healthy_only,
        local_env_runner=False,
        timeout_seconds=None,
    )
    for actor, _, error in outcomes:
        if error is not None:
            error.add_note(f"raised in rollout actor {actor}")
            raise error
    return {actor: result for actor, result, _ in outcomes}


def require_env_runners(group: EnvRunnerGroup, *, what: str = "rollout actor") -> None:
    """Waits until every actor of a group is built, and raises what kept one from it.

    A call waits while Ray starts an actor's process again, which it does until the actor is built, gives an error
    (`counted_start`) or has no restarts left. What was lost in between is asked for once more.

    Args:
        group: the actors.
        what: they are, in messages.

    Raises:
        Exception: an actor's own.
        RuntimeError: names the actors whose processes ended for good.
    """
    missing = list(range(1, group.num_remote_env_runners() + 1))
    for _ in range(2):
        built = _built(group, missing)
        missing = [actor for actor in missing if actor not in built]
    if missing:
        raise RuntimeError(
            f"The process of {what} {', '.join(map(str, missing))} ended while it was being built, and Ray does not "
            "start it again (fault_tolerance(restart_failed_env_runners=..., max_num_env_runner_restarts=...)). A "
            "crash in native code, an environment that calls os._exit, or more memory than there is ends a process "
            "without an error that could be caught; its last output is in Ray's logs (/tmp/ray/session_latest/logs)."
        )


def _built(group: EnvRunnerGroup, actors: list[int]) -> set[int]:
    try:
        return set(on_env_runners(group, lambda runner: None, actors=actors, healthy_only=False))
    except RayError as error:
        # Where actors are not restarted RLlib raises, and does not say for which one.
        if isinstance(error, RayTaskError):
            raise
        return set() if len(actors) == 1 else {actor for actor in actors if _built(group, [actor])}
