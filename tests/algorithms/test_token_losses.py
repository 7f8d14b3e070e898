"""Each algorithm's advantages and token loss against a plain reference in float64, and what it refuses."""

import inspect
import logging
from pathlib import Path

import pytest
import torch

from rlhf_algos.algorithms import ALGORITHMS, algorithm_class
from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.algorithms.gspo import GSPOConfig
from rlhf_algos.algorithms.interface import LanguageModelAlgorithm, LossTokens
from rlhf_algos.algorithms.reinforce_sc import CenteredReinforce, ReinforceSCConfig
from rlhf_algos.algorithms.rloo import RLOOConfig
from rlhf_algos.commands.config.run_config import read_run_config
from rlhf_algos.corrections import TIS, NoCorrection, SequenceTIS

ROOT = Path(__file__).parents[2]

CONFIGS = {"grpo": GRPOConfig, "gspo": GSPOConfig, "reinforce_sc": ReinforceSCConfig, "rloo": RLOOConfig}


def test_the_table_has_every_algorithm_and_its_configuration():
    assert list(ALGORITHMS) == list(CONFIGS)
    for name in ALGORITHMS:
        algorithm = algorithm_class(name)
        assert issubclass(algorithm, LanguageModelAlgorithm)
        config = algorithm.get_default_config()
        assert type(config) is CONFIGS[name] and config.algo_class is algorithm


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_file_names_it(name):
    run = read_run_config(ROOT / "examples/configs/addition_grpo.yaml", [f"algorithm={name}"])
    assert type(run.build()) is CONFIGS[name]


@pytest.mark.parametrize("name", ["rloo", "gspo"])
def test_an_algorithm_is_short(name):
    assert len(Path(inspect.getfile(algorithm_class(name))).read_text().splitlines()) < 90


def tokens_of(corrector, numerator, *, seed=0):
    """Three responses of 3, 1 and 2 tokens, the second of the first not trained on; p, p0 and q differ."""
    generator = torch.Generator().manual_seed(seed)

    def logprobs():
        return -torch.rand(6, dtype=torch.float64, generator=generator)

    current, old, rollout = logprobs().requires_grad_(), logprobs(), logprobs()
    samples, mask = torch.tensor([5, 5, 5, 8, 2, 2]), torch.tensor([True, False, True, True, True, True])
    above = current.detach() if numerator == "current" else old
    return LossTokens(
        logprobs=current,
        old_logprobs=old,
        rollout_logprobs=rollout,
        advantages=torch.tensor([1.0, 1.0, 1.0, -0.5, 0.25, 0.25], dtype=torch.float64),
        sample_ids=samples,
        loss_mask=mask,
        corrector=corrector,
        weights=corrector.correct(above - rollout, samples, mask).weights,
    )


def slow_loss(name, tokens, weight):
    """One trained token after another; `weight` of a sample's rows and a row."""
    total = torch.zeros((), dtype=torch.float64)
    rows_of = {
        int(s): [t for t in range(6) if tokens.sample_ids[t] == s and tokens.loss_mask[t]] for s in tokens.sample_ids
    }
    for sample, rows in rows_of.items():
        for t in rows:
            advantage, p, p0 = tokens.advantages[t], tokens.logprobs[t], tokens.old_logprobs[t]
            if name in ("reinforce_sc", "rloo"):
                loss = -advantage * p
            elif name == "grpo":
                ratio = (p - p0).exp()
                loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            else:
                # The paper's equation 14: the ratio of the response, the gradient of the token.
                s = (sum(tokens.logprobs[r] - tokens.old_logprobs[r] for r in rows) / len(rows)).exp().detach()
                ratio = s * p.exp() / p.exp().detach()
                loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantage)
            total = total + weight(sample, rows, t) * loss
    return total


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("corrector", [NoCorrection(), TIS(high=1.2), SequenceTIS(high=1.2)], ids=repr)
def test_value_and_gradient_equal_a_slow_reference(name, corrector):
    loss = CONFIGS[name]().token_loss() if name != "reinforce_sc" else CenteredReinforce(score_centering=False)
    tokens, again = tokens_of(corrector, loss.corrects), tokens_of(corrector, loss.corrects)
    assert loss.corrects == ("current" if name in ("reinforce_sc", "rloo") else "old")
    above = again.logprobs.detach() if loss.corrects == "current" else again.old_logprobs
    differences = above - again.rollout_logprobs

    def weight(sample, rows, t):
        if isinstance(corrector, SequenceTIS):
            return differences[rows].mean().exp().clamp(0, 1.2)
        return differences[t].exp().clamp(0, 1.2) if isinstance(corrector, TIS) else 1.0

    values, metrics = loss(tokens)
    assert values.shape == (6,) and all(metric.shape == (6,) for metric in metrics.values())
    assert not loss.weighs_itself
    found, expected = (tokens.weights * values)[tokens.loss_mask].sum(), slow_loss(name, again, weight)
    assert found.item() == pytest.approx(expected.item(), abs=1e-12)
    found.backward(), expected.backward()
    assert torch.allclose(tokens.logprobs.grad, again.logprobs.grad, atol=1e-12)
    assert (tokens.logprobs.grad != 0).any()


def test_advantages_of_each_algorithm():
    """Rewards 1, 0, 0, 0: the worked cases of MATH 2."""
    rewards, groups = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    expected = {
        "grpo": [1.73205, -0.57735, -0.57735, -0.57735],
        "gspo": [1.73205, -0.57735, -0.57735, -0.57735],
        "reinforce_sc": [0.75, -0.25, -0.25, -0.25],
        "rloo": [1, -1 / 3, -1 / 3, -1 / 3],
    }
    for name, config in CONFIGS.items():
        assert config().advantages(rewards, groups).tolist() == pytest.approx(expected[name], abs=1e-5), name
    undivided = GRPOConfig().training(normalize_std=False).advantages(rewards, groups)
    assert undivided.tolist() == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (RLOOConfig, {"normalize_std": True}, r"normalize_std=True\): the group's standard deviation contains"),
        (RLOOConfig, {"clip_low": 0.1}, "RLOOConfig.training.. has no argument 'clip_low'"),
        (RLOOConfig, {"score_centering": True}, "has no argument 'score_centering'"),
        (RLOOConfig, {"entropy_coefficient": -1.0}, "entropy_coefficient=-1.0"),
        (GSPOConfig, {"dual_clip": 3.0}, r"dual_clip=3.0\): the bound of MATH 3.2 is one of the ratio of a token"),
        (GSPOConfig, {"loss_reduction": "token-mean"}, "must be 'seq-mean-token-mean': the loss is one number per"),
        (GSPOConfig, {"score_centering": True}, "centering is derived for the REINFORCE loss"),
        (GSPOConfig, {"clip_low": 2.0}, "clip_low=2.0"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(config, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        config().environment("rlhf_algos/Addition-v0").training(**options).validate()


@pytest.mark.parametrize("config", [RLOOConfig, GSPOConfig])
@pytest.mark.parametrize("corrector", ["none", "is", "tis", "icepop", "sequence_tis", "sequence_mask"])
@pytest.mark.parametrize("router_replay", ["none", "r2", "r3"])
def test_every_correction_goes_with_both(config, corrector, router_replay):
    config().environment("rlhf_algos/Addition-v0").training(corrector=corrector, router_replay=router_replay).validate()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("steps", "several"),
    [({"num_epochs": 2}, True), ({"minibatch_size": 8}, True), ({"minibatch_size": 16}, False), ({}, False)],
)
@pytest.mark.parametrize("corrector", ["none", "tis"])
def test_later_steps_without_ratio_and_corrector_are_warned_about(name, steps, several, corrector, caplog):
    config = CONFIGS[name]().environment("rlhf_algos/Addition-v0")
    config.training(prompts_per_iteration=4, group_size=4, corrector=corrector, **steps)
    with caplog.at_level(logging.WARNING):
        config.validate()
    warned = [record.getMessage() for record in caplog.records if "older policy" in record.getMessage()]
    assert bool(warned) == (several and corrector == "none" and name in ("reinforce_sc", "rloo"))
    for text in warned:
        assert f"num_epochs={config.num_epochs}, minibatch_size={config.minibatch_size}, corrector='none'" in text
