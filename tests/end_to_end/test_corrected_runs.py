"""ReinforceSC through the real engine and learner: what is recorded, corrected and reported."""

import numpy as np
import pytest

from rlhf_algos.algorithms.reinforce_sc import ReinforceSCConfig

VOCABULARY = 263


def config_for(**training) -> ReinforceSCConfig:
    return (
        ReinforceSCConfig()
        .environment("rlhf_algos/Addition-v0", env_config={"digits": 2})
        .sampling(max_response_tokens=6)
        .vllm(max_model_len=32, max_num_seqs=64)
        .env_runners(num_env_runners=1, num_cpus_per_env_runner=0.5)
        .training(**{"prompts_per_iteration": 8, "group_size": 4, "lr": 3e-4, **training})
        .evaluation(
            evaluation_duration=40,
            evaluation_config={"env_config": {"digits": 2, "split": "heldout"}},
        )
        .debugging(seed=0)
    )


@pytest.fixture(scope="module")
def algorithm(ray_session):
    """One ReinforceSC for the module; each test resets it to its own configuration."""
    algorithm = config_for().build_algo()
    yield algorithm
    algorithm.stop()


@pytest.fixture
def run(algorithm):
    """A function that trains some iterations with a configuration; returns results and batches."""

    def start(config, iterations):
        assert algorithm.reset_config(config)
        results, batches = [], []
        for _ in range(iterations):
            results.append(algorithm.train())
            batches.append(algorithm.parts.learners.last_batch)
        return [result["learners"]["default_policy"] for result in results], batches, results

    return start


def test_without_a_mismatch_nothing_is_corrected(run):
    (learner, *_), (batch, *_), _ = run(config_for(corrector="tis"), 1)
    assert batch.head_ids.shape == (batch.num_response_tokens, 128)
    assert learner["tis"] == pytest.approx(1.0, abs=1e-5)
    assert learner["tis_abs"] < 1e-5 and learner["tis_zero_fraction"] == 0
    assert learner["rollout_head_mass"] == pytest.approx(learner["trainer_head_mass"], abs=1e-5)
    assert 0.99 < learner["rollout_head_mass"] <= 1 + 1e-4
    assert learner["sc_term_abs"] > 0 and learner["entropy"] > 0


def test_a_head_of_the_whole_vocabulary_is_exact(run):
    (learner, *_), (batch, *_), _ = run(config_for(head_top_k=1000), 1)
    assert batch.head_ids.shape == (batch.num_response_tokens, VOCABULARY)
    assert learner["rollout_head_mass"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("options", [{"top_p": 0.7}, {"top_k": 5}])
def test_truncated_sampling_records_its_support(run, options):
    config = config_for(corrector="icepop")
    config.sampling(**options)
    (learner, *_), (batch, *_), _ = run(config, 1)
    assert batch.head_ids is None and batch.support_lengths.min() >= 1
    mass = np.zeros(batch.num_response_tokens)
    np.add.at(mass, np.repeat(np.arange(len(mass)), batch.support_lengths), np.exp(batch.support_logprobs))
    assert mass == pytest.approx(1.0, abs=1e-4)
    assert learner["rollout_head_mass"] == pytest.approx(1.0, abs=1e-5)
    assert learner["trainer_head_mass"] == pytest.approx(1.0, abs=1e-5)
    assert learner["train_rollout_logprob_abs_diff"] < 2e-6


def test_rounded_sampler_weights_are_a_mismatch_that_evaluation_tells_apart(run, algorithm):
    config = config_for(corrector="icepop").mismatch_injection(rounding_bits=3)
    (learner, *_), (batch, *_), _ = run(config, 1)
    assert learner["train_rollout_logprob_abs_diff"] > 1e-2
    assert learner["tis_zero_fraction"] > 0 and learner["tis_weight"] < learner["tis"]
    assert batch.settings.mismatch_injection["rounding_bits"] == 3
    evaluation = algorithm.evaluate()["env_runners"]
    assert evaluation["episode_return_mean"] != evaluation["sampler_episode_return_mean"]
    # The trainer's policy is evaluated with the trainer's own weights, and sampling goes on with the rounded ones.
    again = algorithm.train()["learners"]["default_policy"]
    assert again["train_rollout_logprob_abs_diff"] > 1e-2
    assert algorithm.reset_config(config_for())
    assert algorithm.evaluate()["env_runners"]["episode_return_mean"] > evaluation["sampler_episode_return_mean"]


def test_weight_noise_is_a_mismatch(run):
    learner = run(config_for().mismatch_injection(weight_noise=0.1), 1)[0][0]
    assert learner["train_rollout_logprob_abs_diff"] > 1e-2


def test_a_lag_is_staleness_and_nothing_else(run):
    learners, batches, results = run(config_for(lr=1e-3).mismatch_injection(lag=2), 4)
    assert [result["staleness"]["max"] for result in results] == [0, 1, 2, 2]
    assert [set(batch.weight_versions.tolist()) for batch in batches] == [{0}, {0}, {0}, {1}]
    assert learners[0]["train_rollout_logprob_abs_diff"] < 1e-6
    assert learners[2]["train_rollout_logprob_abs_diff"] > 1e-3


def test_responses_can_be_looked_at_token_by_token(run, algorithm):
    _, (batch, *_), _ = run(config_for(corrector="tis").mismatch_injection(rounding_bits=3), 1)
    shown = algorithm.shown_responses()
    assert len(shown) == 4
    length = int(batch.response_lengths[0])
    assert shown[0]["prompt"].endswith("=") and shown[0]["reward"] == batch.rewards[0]
    assert len(shown[0]["tokens"]) == len(shown[0]["old_logprobs"]) == length
    assert shown[0]["rollout_logprobs"] == batch.rollout_logprobs[:length].tolist()
    differences = np.subtract(shown[0]["old_logprobs"], shown[0]["rollout_logprobs"])
    assert 1e-4 < np.abs(differences).max() < 10
