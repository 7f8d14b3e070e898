"""A run from its first iteration to its last, and its folder along with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rlhf_algos.metrics import EVALUATION
from rlhf_algos.runs.run_folder import RunFolder
from rlhf_algos.runs.values import flatten


class Trainee(Protocol):
    """What of an algorithm a run needs."""

    def train(self) -> dict[str, Any]:
        """One iteration; its result."""

    def evaluate(self) -> dict[str, Any]:
        """Statistics of the evaluation's problems."""

    def shown_responses(self) -> list[dict[str, Any]]:
        """A few responses of the last batch, as `RunFolder.append_samples` takes them."""


def train_and_evaluate(
    algorithm: Trainee, iterations: int, *, evaluate_every: int = 0, stopped: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The iterations of a run and their results.

    Args:
        algorithm: built.
        iterations: how many.
        evaluate_every: iterations between evaluations; there is one before the first, as iteration 0, and one after the
            last. 0 evaluates never.
        stopped: asked before each iteration and each evaluation but the first; True ends the run there.

    Yields:
        Number and result of an iteration, with its evaluation under "evaluation".
    """
    if evaluate_every:
        yield 0, {"evaluation": algorithm.evaluate()}
    for number in range(1, iterations + 1):
        if stopped():
            return
        result = algorithm.train()
        # With an evaluation interval of its own, the algorithm may have evaluated.
        evaluated = f"{EVALUATION}/episode_return_mean" in flatten(result)
        if is_due(number, iterations, evaluate_every) and not evaluated and not stopped():
            result["evaluation"] = algorithm.evaluate()
        yield number, result


def is_due(number: int, iterations: int, every: int) -> bool:
    """Whether an iteration is among those of an interval, or the last; never with an interval of 0."""
    return every > 0 and (number % every == 0 or number == iterations)


def record_run(
    algorithm: Trainee,
    iterations: int,
    folder: RunFolder,
    *,
    evaluate_every: int = 0,
    tell: Callable[[int, Mapping[str, float]], None] = lambda number, row: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """`train_and_evaluate`, with each iteration and some of the responses written into a run folder.

    Args:
        algorithm: built.
        iterations: how many.
        folder: of the run.
        evaluate_every: iterations between evaluations, after which responses are kept too; also after the last.
        tell: gets the number and the row of each iteration.
        stopped: True ends the run before the next iteration.
    """
    for number, result in train_and_evaluate(algorithm, iterations, evaluate_every=evaluate_every, stopped=stopped):
        tell(number, folder.append(number, result))
        if number and (number == iterations or is_due(number, iterations, evaluate_every)):
            folder.append_samples(number, algorithm.shown_responses())


@contextmanager
def recorded_state(
    folder: RunFolder, describe: Callable[[BaseException], str] = lambda error: f"{type(error).__name__}: {error}"
) -> Iterator[None]:
    """Says in the folder how the run stands: running, and at the end finished, interrupted or failed.

    Args:
        folder: of the run.
        describe: an error in a few words.
    """
    folder.set_status("running")
    try:
        yield
    except KeyboardInterrupt:
        folder.set_status("interrupted")
        raise
    except Exception as error:
        folder.set_status("failed", describe(error))
        raise
    folder.set_status("finished")
