"""Training on saved batches gives what the live iteration gave."""

import numpy as np
import pytest
import torch
from ray.tune.utils import flatten_dict

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig
from rlhf_algos.analysis.rollout_only import rollout_only
from rlhf_algos.batch import RolloutBatch
from rlhf_algos.driver.batch_metrics import rollout_metrics
from rlhf_algos.driver.calls import on_learners
from rlhf_algos.driver.saved_batches import batch_files
from rlhf_algos.metrics import is_listed


def settings_for(config_class, **training):
    return (
        config_class()
        .environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
        .sampling(max_response_tokens=6, record_routes=True)
        .vllm(dtype="bfloat16", max_model_len=32, max_num_seqs=64)
        .env_runners(num_cpus_per_env_runner=0.5)
        .training(**{"prompts_per_iteration": 8, "group_size": 4, "lr": 1e-3, **training})
        .debugging(seed=0)
    )


# Throughputs that RLlib derives from lifetime sums.
ADDED_BY_RLLIB = "_throughput"

COMPONENTS = [
    {"corrector": "none"},
    {"corrector": "icepop", "router_replay": "r3"},
    {"corrector": {"type": "sequence_tis"}, "score_centering": False},
    {"corrector": "tis", "router_replay": "r3"},
]


@pytest.fixture(scope="module")
def running(ray_session):
    """A running ReinforceSC, to be reset."""
    algorithm = settings_for(ReinforceSCConfig).build_algo()
    yield algorithm
    algorithm.stop()


@pytest.fixture(scope="module")
def live(running, tmp_path_factory):
    """For each setting two live iterations of ReinforceSC: its results, and the folder of its batches."""
    runs = []
    for number, training in enumerate(COMPONENTS):
        folder = tmp_path_factory.mktemp(f"batches-{number}")
        config = settings_for(ReinforceSCConfig, **training).debugging(save_batches=str(folder))
        assert running.reset_config(config)
        results = [running.train() for _ in range(2)]
        assert_declared(results)
        runs.append((training, folder, [result["learners"]["default_policy"] for result in results]))
    return runs


def assert_declared(results):
    """Every number that a run logs is in the list of metrics."""
    for result in results:
        for group in ("env_runners", "learners", "staleness"):
            for key in flatten_dict({group: result[group]}):
                assert is_listed(key) or key.endswith(ADDED_BY_RLLIB), key


def test_an_iteration_of_two_training_steps(running, tmp_path):
    """8 groups of 4 each: both are counted, the extremes are those of both, and both batches are kept."""
    folder = tmp_path / "batches"
    config = settings_for(ReinforceSCConfig).debugging(save_batches=str(folder))
    config.reporting(min_sample_timesteps_per_iteration=64)
    assert running.reset_config(config)
    results = [running.train() for _ in range(2)]
    assert_declared(results)
    files = sorted(folder.glob("*.safetensors"))
    assert [file.stem for file in files] == [f"step-00000{step}" for step in (1, 2, 3, 4)]
    batches = [RolloutBatch.load(file) for file in files]
    assert len({batch.content_hash for batch in batches}) == 4
    for number, result in enumerate(results):
        both = RolloutBatch.concatenate(batches[2 * number : 2 * number + 2])
        assert len(np.unique(both.group_ids)) == 16
        expected = rollout_metrics(both)
        runners = result["env_runners"]
        assert {name: runners[name] for name in expected} == pytest.approx(expected)
        assert runners["num_episodes"] == 64
        assert runners["num_env_steps_sampled_lifetime"] == 64 * (number + 1)
        learner = result["learners"]["default_policy"]
        assert learner["num_optimizer_steps"] == 2
        assert learner["learning_rate"] == pytest.approx(1e-3)
        assert result["staleness"] == {"mean": 0.0, "max": 0.0}
    # Going on in the same folder with another configuration would be another run.
    with pytest.raises(ValueError, match=r"holds batches of run \w{12} \(seed 0\)"):
        running.reset_config(config.copy(copy_frozen=False).training(lr=1e-4))
    batch_files(folder)


METRICS = ("loss", "grad_norm", "mismatch_kl", "tis", "tis_clipfrac", "route_mismatch", "entropy")


def assert_same(found, expected, training):
    for name in METRICS:
        if name == "tis_clipfrac" and training["corrector"] == "none":
            assert name not in found and name not in expected
        else:
            assert found[name] == pytest.approx(expected[name], abs=1e-6), (training, name)


def test_a_run_on_saved_batches_is_the_live_run(live):
    """Without vLLM: no rollout actor exists, and both iterations have the live metrics, and no third one."""
    training, folder, expected = live[1]
    algorithm = settings_for(ReinforceSCConfig, **training).offline_data(input_=str(folder)).build_algo()
    try:
        assert algorithm.env_runner_group is None
        for learner in expected:
            assert_same(algorithm.train()["learners"]["default_policy"], learner, training)
        with pytest.raises(ValueError, match="no engine"):
            algorithm.evaluate()
        with pytest.raises(Exception, match="All 2 saved batches have been trained on"):
            algorithm.train()
    finally:
        algorithm.stop()


def test_every_component_gives_the_live_metrics_on_the_saved_batch(live, learner_pool):
    for training, folder, expected in live:
        config = settings_for(ReinforceSCConfig, **training)
        config.validate()
        batch = RolloutBatch.load(min(folder.glob("*.safetensors")))
        group = learner_pool(config)
        metrics = on_learners(group, lambda learner, b=batch: learner.update_from_rollouts(b, env_steps_sampled=0))
        assert_same(metrics[0], expected[0], training)


@pytest.mark.parametrize("algorithm", [GRPOConfig, ReinforceSCConfig])
def test_gradients_survive_the_file(live, learner_pool, tmp_path, algorithm):
    """Every tensor of the gradient, with a corrector, R3 and (for ReinforceSC) centering."""
    batch = RolloutBatch.load(next(live[1][1].glob("*.safetensors")))
    config = settings_for(algorithm, corrector="tis", router_replay="r3", lr=0.0)
    config.validate()
    gradients = []
    for given in (batch, RolloutBatch.load(batch.save(tmp_path / "again.safetensors"))):
        group = learner_pool(config)
        on_learners(group, lambda learner, b=given: learner.update_from_rollouts(b, env_steps_sampled=0))
        gradients.append(on_learners(group, lambda learner: learner.gradients)[0][0])
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-6), name


def test_a_path_without_batches_is_named(tmp_path):
    from rlhf_algos.driver.saved_batches import batch_files

    with pytest.raises(FileNotFoundError, match="nothing does not exist"):
        batch_files(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="holds no saved batch"):
        batch_files([tmp_path])


def test_rollout_without_a_learner_gives_the_first_batch_of_a_run(live, tmp_path):
    """The same tokens and log-probabilities as a run's first iteration, saved like a run's."""
    training, folder, _ = live[0]
    config = settings_for(ReinforceSCConfig, **training).debugging(save_batches=str(tmp_path))
    batches = list(rollout_only(config, iterations=2))
    expected = RolloutBatch.load(min(folder.glob("*.safetensors")))
    assert np.array_equal(batches[0].response_ids, expected.response_ids)
    assert np.array_equal(batches[0].rewards, expected.rewards)
    assert np.abs(batches[0].rollout_logprobs - expected.rollout_logprobs).max() < 1e-5
    assert not set(batches[1].group_ids) & set(batches[0].group_ids)
    saved = RolloutBatch.load(max(tmp_path.glob("*.safetensors")))
    assert saved.content_hash == batches[1].content_hash
    with pytest.raises(ValueError, match="remove mismatch_injection"):
        next(rollout_only(settings_for(ReinforceSCConfig).mismatch_injection(lag=1), 1))
