"""Calls to learners and rollout actors, with every error brought back to the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

Result = TypeVar("Result")

# What ranks see that were waiting for one that failed; not the reason itself.
_CONSEQUENCES = ("Connection closed by peer", "Connection reset by peer", "process group")


def on_learners(learner_group: LearnerGroup, function: Callable[[Any], Result]) -> list[Result]:
    """Calls `function(learner)` on every rank at once; returns the results in the order of ranks.

    Raises:
        Exception: a failing rank's own error, preferred over those of ranks that only waited for it.
    """
    results = list(learner_group.foreach_learner(function))
    errors = [result.get() for result in results if not result.ok]
    if errors:
        reasons = [error for error in errors if not any(text in str(error) for text in _CONSEQUENCES)]
        raise (reasons or errors)[0]
    return [result.get() for result in results]


def on_env_runners(
    group: EnvRunnerGroup,
    function: Callable[..., Result],
    *,
    actors: list[int] | None = None,
    kwargs_by_actor: Mapping[int, Mapping[str, Any]] | None = None,
) -> dict[int, Result]:
    """Calls `function(runner, **kwargs)` on rollout actors at once.

    An actor that dies is missing from the result (RLlib has it restarted). An actor whose call raises makes this
    raise: RLlib would take an error of the environment for a failure of the machine and try again.

    Args:
        group: the actors.
        function: called with the actor, and its own keyword arguments.
        actors: ids; all healthy ones by default.
        kwargs_by_actor: keyword arguments of each actor.

    Returns:
        Results by actor id.
    """
    ids = group.healthy_env_runner_ids() if actors is None else list(actors)
    if not ids:
        return {}

    def call(runner: Any, actor: int, arguments: Mapping[str, Any]) -> tuple[int, Any, Exception | None]:
        try:
            return actor, function(runner, **arguments), None
        except Exception as error:
            return actor, None, error

    arguments = kwargs_by_actor or {}
    outcomes = group.foreach_env_runner(
        [call] * len(ids),
        kwargs=[{"actor": actor, "arguments": arguments.get(actor, {})} for actor in ids],
        remote_worker_ids=ids,
        local_env_runner=False,
        timeout_seconds=None,
    )
    for actor, _, error in outcomes:
        if error is not None:
            error.add_note(f"raised in rollout actor {actor}")
            raise error
    return {actor: result for actor, result, _ in outcomes}
