"""Publishing the trainer's weights and having every rollout actor acknowledge them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rlhf_algos.algorithms.base.remote import on_env_runners, on_learners
from rlhf_algos.rollout.mismatch_injection import NO_INJECTION, MismatchInjection
from rlhf_algos.weight_sync import SharedWeights, check_layout, read_weights
from rlhf_algos.weight_sync.shared_memory import write_weights

if TYPE_CHECKING:
    from ray.rllib.core.learner.learner_group import LearnerGroup

    from rlhf_algos.learner.deepspeed_learner import DeepSpeedLearner
    from rlhf_algos.rollout.vllm_env_runner import VLLMEnvRunner


def publish(learner_group: LearnerGroup, shared: SharedWeights, version: int) -> None:
    """Has the learners write their weights to shared memory as `version`."""
    path = shared.path(version)
    on_learners(learner_group, lambda learner: _write(learner, path, version))


def distribute(
    env_runner_group: EnvRunnerGroup,
    shared: SharedWeights,
    version: int,
    *,
    seed: int,
    actors: list[int] | None = None,
    injection: MismatchInjection = NO_INJECTION,
) -> None:
    """Has rollout actors load `version`, all or those with the given ids.

    Args:
        env_runner_group: the actors.
        shared: where the weights were published.
        version: to load.
        seed: of the run, which decides injected noise.
        actors: ids; all healthy ones by default.
        injection: what is done to the weights on purpose.

    Raises:
        RuntimeError: if an actor acknowledges another version.
    """
    path = shared.path(version)
    acknowledged = on_env_runners(env_runner_group, lambda runner: _read(runner, path, injection, seed), actors=actors)
    wrong = {actor: got for actor, got in acknowledged.items() if got != version}
    if wrong:
        raise RuntimeError(f"Rollout actors acknowledged other weight versions than {version}: {wrong}.")


def _write(learner: DeepSpeedLearner, path: Path, version: int) -> None:
    tensors = learner.checkpoint_tensors()
    if learner.rank == 0:
        write_weights(path, tensors, version)


def _read(runner: VLLMEnvRunner, path: Path, injection: MismatchInjection, seed: int) -> int:
    tensors, version = read_weights(path)
    # Before the engine is touched: a wrong set of names leaves the old weights in place.
    check_layout({name: tuple(tensor.shape) for name, tensor in tensors.items()}, runner.checkpoint_layout)
    return runner.load_weights(tensors.items(), version, injection=injection, seed=seed)
