"""Actors that Ray restarted in silence, and evaluations beside training: who has which configuration and weights."""

import threading

import pytest
import torch
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.algorithms.base import weights
from rlhf_algos.algorithms.base.reset import as_config
from rlhf_algos.algorithms.base.roll_call import Standing, bring_up_to_date, standing_of
from rlhf_algos.algorithms.grpo import GRPO, GRPOConfig
from rlhf_algos.rollout.mismatch_injection import NO_INJECTION, MismatchInjection
from rlhf_algos.weight_sync import SharedWeights
from rlhf_algos.weight_sync.shared_memory import write_weights
from tests.fake_engine import Death, FakeGroup, new_runner

LAYOUT = {"w": (2,)}


def config_for(temperature=1.0, **evaluation):
    config = (
        GRPOConfig()
        .environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
        .sampling(max_response_tokens=4, temperature=temperature)
        .training(prompts_per_iteration=2, group_size=2)
        .evaluation(evaluation_duration=6, **evaluation)
        .debugging(seed=0)
    )
    return as_config(GRPOConfig(), config)


def small_runner(config, **options):
    """As a process that has just started, with a model of two numbers."""
    runner = new_runner(config, **options)
    runner.checkpoint_layout = LAYOUT
    return runner


def temperature_of(runner):
    batch, _ = runner.sample_groups([0], weight_version=runner.weight_version)
    return batch.settings.temperature


def test_a_restarted_actor_gets_the_configuration_that_holds_now_before_the_weights():
    first, second = config_for(), config_for(temperature=0.5)
    group = FakeGroup([small_runner(first), small_runner(first)])
    loaded = []

    def bring(wanted, config):
        def load(actors):
            loaded.append(actors)
            for actor in actors:
                runner, weights = group.runners[actor], {"w": torch.ones(2)}
                runner.load_weights(weights.items(), wanted.weight_version, injection=wanted.injection, seed=0)

        bring_up_to_date(group, wanted, config=config, load=load)

    bring(Standing(0, 3, NO_INJECTION), first)
    assert loaded.pop() == [1, 2]
    bring(Standing(0, 3, NO_INJECTION), first)
    assert loaded == []
    bring(Standing(1, 3, NO_INJECTION), second)
    assert loaded.pop() == [1, 2]
    # Nobody called it when it died: it stands among the healthy ones.
    group.runners[2] = small_runner(first)
    assert temperature_of(group.runners[1]) == 0.5
    bring(Standing(1, 3, NO_INJECTION), second)
    assert loaded.pop() == [2]
    assert [temperature_of(runner) for runner in group.runners.values()] == [0.5, 0.5]
    bring(Standing(1, 3, MismatchInjection(weight_noise=0.1)), second)
    assert loaded.pop() == [1, 2]
    assert standing_of(group.runners[1]) == Standing(1, 3, MismatchInjection(weight_noise=0.1))


@pytest.fixture
def algorithm(monkeypatch, tmp_path):
    """The library's algorithm over actors in this process; its learners' weights are two numbers."""
    algorithm = object.__new__(GRPO)
    algorithm.config = config_for(evaluation_num_env_runners=1)
    algorithm.evaluation_config = algorithm.config.get_evaluation_config_object()
    algorithm.evaluation_config.validate()
    algorithm.evaluation_config.freeze()
    algorithm.env_runner_group = FakeGroup([small_runner(algorithm.config)])
    algorithm.eval_env_runner_group = FakeGroup([small_runner(algorithm.evaluation_config)])
    algorithm.learner_group = algorithm.offline_data = algorithm._training_splits = None
    algorithm.callbacks, algorithm.metrics = [], MetricsLogger(root=True)
    algorithm._shared_weights, algorithm._publication = SharedWeights(tmp_path), threading.Lock()
    algorithm._configuration, algorithm._evaluated_version = 0, None

    def publish(learner_group, shared, version):
        write_weights(shared.path(version), {"w": torch.full((2,), float(version))}, version)

    monkeypatch.setattr(weights, "publish", publish)
    algorithm._publish(0)
    yield algorithm
    algorithm.abandon()


def versions_on_disk(algorithm):
    return sorted(int(file.stem.split("-")[1]) for file in algorithm._shared_weights.folder.glob("weights-*"))


def test_an_evaluation_beside_training_keeps_to_one_version(algorithm):
    """Training publishes two versions while the problems are played."""
    (evaluating,) = algorithm.eval_env_runner_group.runners.values()
    seen = []

    def answer(request):
        if len(seen) in (1, 2):
            algorithm._publish(algorithm._weight_version + 1)
        seen.append((evaluating.engine.loaded["w"].tolist(), versions_on_disk(algorithm)))
        return [23, 1]

    evaluating.engine.answer = answer
    results = algorithm.evaluate()["env_runners"]
    assert results["weight_version"] == 0 and algorithm._weight_version == 2
    assert {tuple(numbers) for numbers, _ in seen} == {(0.0, 0.0)}
    assert seen[-1][1] == [0, 1, 2]
    algorithm._publish(3)
    assert versions_on_disk(algorithm) == [3]
    assert algorithm.evaluate()["env_runners"]["weight_version"] == 3


def test_an_actor_that_dies_in_such_an_evaluation_gets_the_evaluated_version_again(algorithm):
    group = algorithm.eval_env_runner_group
    answered = []

    def answer(request):
        answered.append(request.key)
        if len(answered) == 3:
            algorithm._publish(algorithm._weight_version + 1)
            group.runners[1] = small_runner(algorithm.evaluation_config, answer=answer)
            raise Death
        return [23, 1]

    group.runners[1].engine.answer = answer
    results = algorithm.evaluate()["env_runners"]
    assert (results["weight_version"], results["num_episodes"]) == (0, 6)
    assert group.runners[1].engine.loaded["w"].tolist() == [0.0, 0.0]


def test_with_an_injected_mismatch_both_figures_are_of_their_own_weights(algorithm):
    config = algorithm.config.copy(copy_frozen=False).mismatch_injection(weight_noise=0.5)
    algorithm.config = as_config(GRPOConfig(), config)
    (evaluating,) = algorithm.eval_env_runner_group.runners.values()
    seen = []

    def answer(request):
        seen.append(evaluating.engine.loaded["w"].tolist())
        return [23, 1]

    evaluating.engine.answer = answer
    algorithm._publish(5)
    algorithm.evaluate()
    noisy = {tuple(numbers) for numbers in seen[:12]}
    assert len(noisy) == 1 and noisy != {(5.0, 5.0)}
    assert {tuple(numbers) for numbers in seen[12:]} == {(5.0, 5.0)}
    # Training goes on with the noise that it had.
    (sampling,) = algorithm.env_runner_group.runners.values()
    assert tuple(sampling.engine.loaded["w"].tolist()) in noisy
