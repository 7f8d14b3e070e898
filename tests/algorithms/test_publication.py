"""Actors that Ray restarted in silence, and evaluations beside training: who has which configuration and weights."""

import json

import pytest
import torch
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.reset import as_config, evaluation_config_of
from rlhf_algos.driver.crew import Crew, Standing, Weights, standing_of
from rlhf_algos.driver.evaluator import Evaluator
from rlhf_algos.driver.live_source import LiveSource
from rlhf_algos.driver.playing import Actors, sample_groups
from rlhf_algos.driver.publication import Publication
from rlhf_algos.driver.run_state import restore_run, run_state
from rlhf_algos.driver.step_log import StepLog
from rlhf_algos.weight_sync import NO_INJECTION, MismatchInjection, SharedMemory, with_injection
from tests.fake_engine import Death, FakeGroup, new_runner

LAYOUT = {"w": (2,)}
MARKS = "mark"


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


@pytest.fixture
def channel(tmp_path):
    channel = SharedMemory(tmp_path)
    yield channel
    channel.close()


class Recording:
    """A channel that notes who asks for which version."""

    injection = NO_INJECTION

    def __init__(self):
        self.received = []

    def receive(self, version):
        self.received.append(version)
        return {"w": torch.full((2,), float(version))}


def test_a_restarted_actor_gets_the_configuration_that_holds_now_before_the_weights():
    first, second = config_for(), config_for(temperature=0.5)
    group, channel = FakeGroup([small_runner(first), small_runner(first)]), Recording()

    def loads(crew, weights):
        """How many actors have loaded weights to be up to date."""
        channel.received.clear()
        crew.bring_up_to_date(weights)
        assert set(channel.received) <= {weights.version}
        return len(channel.received)

    crew = Crew(group, first, 0)
    assert loads(crew, Weights(channel, 3)) == 2
    assert loads(crew, Weights(channel, 3)) == 0
    crew = Crew(group, second, 1)
    assert loads(crew, Weights(channel, 3)) == 2
    # Nobody called it when it died: it stands among the healthy ones.
    group.runners[2] = small_runner(first)
    assert temperature_of(group.runners[1]) == 0.5
    assert loads(crew, Weights(channel, 3)) == 1
    assert [temperature_of(runner) for runner in group.runners.values()] == [0.5, 0.5]
    noise = MismatchInjection(weight_noise=0.1)
    assert loads(crew, Weights(with_injection(channel, noise, seed=0), 3)) == 2
    assert standing_of(group.runners[1]) == Standing(1, 3, noise)


class LearnersOfOneNumber:
    """A learner group in this process, whose weights are the number of times that they were asked for."""

    is_local, rank = True, 0

    def __init__(self):
        self.published = -1

    def foreach_learner(self, function):
        result = function(self)
        return [type("Result", (), {"get": lambda self: result})()]

    def checkpoint_tensors(self):
        self.published += 1
        return {"w": torch.full((2,), float(self.published))}


class Run:
    """The parts of a run over actors in this process; the trainer's weights are two numbers, those of the version."""

    def __init__(self, channel, injection=NO_INJECTION):
        self.channel, config = channel, config_for(evaluation_num_env_runners=1)
        self.evaluation_config = evaluation_config_of(config)
        self.rollout = FakeGroup([small_runner(config)])
        self.evaluation = FakeGroup([small_runner(self.evaluation_config)])
        training = Crew(self.rollout, config, 0)
        self.publication = Publication(
            channel, LearnersOfOneNumber(), training, is_received=True, injection=injection, seed=0
        )
        options = {"patience_s": 5.0, "marks": channel.folder / MARKS}
        self.source = LiveSource(training, self.publication, prompts_per_iteration=2, **options)
        evaluating = Crew(self.evaluation, self.evaluation_config, 0)
        self.evaluator = Evaluator(evaluating, self.publication, self.source, num_problems=6, greedy=True, **options)
        self.step_log = StepLog(MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup))
        self.publication.publish(0)

    def versions_on_disk(self):
        return sorted(int(file.stem.split("-")[1]) for file in self.channel.folder.glob("weights-*"))

    def engine_of_evaluation(self):
        (runner,) = self.evaluation.runners.values()
        return runner.engine


@pytest.fixture
def run(channel):
    return Run(channel)


def test_an_evaluation_beside_training_keeps_to_one_version(run):
    """Training publishes two versions while the problems are played."""
    engine, seen = run.engine_of_evaluation(), []

    def answer(request):
        if len(seen) in (1, 2):
            run.publication.publish_next()
        seen.append((engine.loaded["w"].tolist(), run.versions_on_disk()))
        return [23, 1]

    engine.answer = answer
    assert run.evaluator.evaluate()["weight_version"] == 0
    assert run.publication.version == 2
    assert {tuple(numbers) for numbers, _ in seen} == {(0.0, 0.0)}
    assert seen[-1][1] == [0, 1, 2]
    run.publication.publish_next()
    assert run.versions_on_disk() == [3]
    assert run.evaluator.evaluate()["weight_version"] == 3
    assert seen[-1][0] == [3.0, 3.0]


def test_an_actor_that_dies_in_such_an_evaluation_gets_the_evaluated_version_again(run):
    group, answered = run.evaluation, []

    def answer(request):
        answered.append(request.key)
        if len(answered) == 3:
            run.publication.publish_next()
            group.runners[1] = small_runner(run.evaluation_config, answer=answer)
            raise Death
        return [23, 1]

    run.engine_of_evaluation().answer = answer
    results = run.evaluator.evaluate()
    assert (results["weight_version"], results["num_episodes"]) == (0, 6)
    assert run.engine_of_evaluation().loaded["w"].tolist() == [0.0, 0.0]


class Restarted:
    """Actors in this process; one that has answered some problems is restarted at once, unnoticed: it was idle."""

    def __init__(self, group, config, *, after):
        self.group, self.config, self.after, self.plays = group, config, after, 0
        self.foreach, group.foreach_env_runner = group.foreach_env_runner, self

    def __call__(self, functions, **options):
        results = self.foreach(functions, **options)
        if any(isinstance(result, tuple) for _, result, _ in results):
            self.plays += 1
            if self.plays == 1:
                self.group.runners[self.after] = small_runner(self.config)
        return results


def test_an_actor_that_is_restarted_between_two_plays_has_weights_for_the_second(run):
    restarted = Restarted(run.evaluation, run.evaluation_config, after=1)
    results = run.evaluator.evaluate()
    assert (results["num_episodes"], restarted.plays) == (6, 2)
    assert run.engine_of_evaluation().loaded["w"].tolist() == [0.0, 0.0]


def test_an_idle_actor_that_is_restarted_while_another_dies_gets_weights_before_it_helps_out(channel):
    """Of two actors one problem keeps one idle; it is restarted unnoticed, and the busy one does not come back."""
    config = config_for()
    group, weights = FakeGroup([]), Weights(channel, 0)

    def dies(request):
        group.runners[2] = small_runner(config)
        raise Death

    group.runners = {1: small_runner(config, answer=dies), 2: small_runner(config)}
    group.healthy, group.probe_unhealthy_env_runners = {1, 2}, list
    channel.send({"w": torch.zeros(2)}, 0)
    crew = Crew(group, config, 0)
    crew.bring_up_to_date(weights)
    actors = Actors(group, lambda: crew.restore(weights), 5.0)
    assert sample_groups(actors, [0], weight_version=0).groups_sampled_again == 1


def test_with_an_injected_mismatch_both_figures_are_of_their_own_weights(channel):
    run = Run(channel, MismatchInjection(weight_noise=0.5))
    engine, seen = run.engine_of_evaluation(), []

    def answer(request):
        seen.append(engine.loaded["w"].tolist())
        return [23, 1]

    engine.answer = answer
    for _ in range(5):
        run.publication.publish_next()
    results = run.evaluator.evaluate()
    assert {"episode_return_mean", "sampler_episode_return_mean", "sampler_greedy_return_mean"} <= set(results)
    noisy = {tuple(numbers) for numbers in seen[:12]}
    assert len(noisy) == 1 and noisy != {(5.0, 5.0)}
    assert {tuple(numbers) for numbers in seen[12:]} == {(5.0, 5.0)}
    # Training goes on with the noise that it had.
    (sampling,) = run.rollout.runners.values()
    assert tuple(sampling.engine.loaded["w"].tolist()) in noisy


def test_with_a_lag_older_versions_are_kept_and_sampled_with(channel):
    run = Run(channel, MismatchInjection(lag=2))
    (sampling,) = run.rollout.runners.values()
    for version, (loaded, kept) in enumerate([(0, [0, 1]), (0, [0, 1, 2]), (1, [1, 2, 3])], 1):
        run.publication.publish_next()
        assert run.publication.version == version
        assert sampling.engine.loaded["w"].tolist() == [loaded, loaded]
        assert run.versions_on_disk() == kept
    batch = run.source.next(3).batch
    assert set(batch.weight_versions.tolist()) == {1}


@pytest.mark.parametrize(("injection", "versions"), [(NO_INJECTION, [2, 3]), (MismatchInjection(lag=3), [2, 2])])
def test_a_run_goes_on_from_its_state(channel, injection, versions):
    """The same groups as in the run that was not interrupted, under versions that there are."""
    first = Run(channel)
    for _ in range(2):
        first.step_log.sampled(first.source.next(first.publication.version), weight_version=first.publication.version)
        first.publication.publish_next()
    state = json.loads(json.dumps(run_state(first.source, first.publication, first.step_log)))
    channel.remove_older(100)
    again = Run(channel, injection)
    restore_run(state, again.source, again.publication, again.step_log)
    assert again.step_log.responses_sampled() == first.step_log.responses_sampled() == 8
    for version, groups in zip(versions, ([4, 5], [6, 7]), strict=True):
        rollouts = again.source.next(again.publication.version)
        again.step_log.sampled(rollouts, weight_version=again.publication.version)
        assert sorted(set(rollouts.batch.group_ids.tolist())) == groups
        assert set(rollouts.batch.weight_versions.tolist()) == {version}
        again.publication.publish_next()
    assert again.step_log.responses_sampled() == 16


def test_the_end_of_a_run_leaves_nothing_for_the_next_one_to_find(run):
    run.publication.publish_next()
    # Sent, and not counted.
    run.channel.send({"w": torch.zeros(2)}, 2)
    run.publication.end()
    assert run.versions_on_disk() == []
