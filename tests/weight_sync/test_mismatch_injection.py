"""What is done to the sampler's weights on purpose."""

import pytest
import torch

from rlhf_algos.weight_sync.mismatch_injection import MismatchInjection, round_per_channel


def test_rounding_by_hand():
    # 3 bits: 2**2 - 1 = 3 steps to either side, so the grid of the first row is multiples of 0.3 / 3 = 0.1.
    weight = torch.tensor([[0.3, -0.14, 0.16, 0.0], [0.0, 0.0, 0.0, 0.0], [-6.0, 1.1, 2.9, 5.1]])
    rounded = round_per_channel(weight, 3)
    assert rounded.tolist() == [
        pytest.approx([0.3, -0.1, 0.2, 0.0]),
        [0.0] * 4,
        pytest.approx([-6.0, 2.0, 2.0, 6.0]),
    ]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_rounding_error_is_at_most_half_a_step_of_its_own_channel(bits):
    weight = torch.randn(16, 32, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 16)[:, None]
    rounded = round_per_channel(weight, bits)
    step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert ((rounded - weight).abs() <= step / 2 * (1 + 1e-4)).all()
    assert max(len(set(row.tolist())) for row in rounded) <= 2**bits - 1
    assert round_per_channel(weight.bfloat16(), bits).dtype == torch.bfloat16


WEIGHTS = {
    "model.embed_tokens.weight": torch.randn(8, 4),
    "lm_head.weight": torch.randn(8, 4),
    "model.layers.0.mlp.gate.weight": torch.randn(4, 4),
    "model.layers.0.input_layernorm.weight": torch.randn(4),
    "model.layers.0.self_attn.q_proj.weight": torch.randn(4, 4),
    "model.layers.0.mlp.experts.1.gate_proj.weight": torch.randn(4, 4),
}


def test_rounding_leaves_embeddings_head_routers_and_vectors_alone():
    before = {name: tensor.clone() for name, tensor in WEIGHTS.items()}
    after = dict(MismatchInjection(rounding_bits=3).apply(WEIGHTS.items(), seed=0))
    changed = {name for name in WEIGHTS if not torch.equal(after[name], WEIGHTS[name])}
    assert changed == {
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.experts.1.gate_proj.weight",
    }
    assert all(torch.equal(before[name], WEIGHTS[name]) for name in WEIGHTS)


def test_noise_has_the_given_size_and_is_the_same_in_every_version():
    weights = {"a": torch.full((400, 100), 2.0), "b": torch.full((400, 100), 2.0)}
    injection = MismatchInjection(weight_noise=0.1)
    first, second = (dict(injection.apply(weights.items(), seed=3)) for _ in range(2))
    assert torch.equal(first["a"], second["a"])
    # 10 % of a root mean square of 2.
    assert float((first["a"] - 2.0).std()) == pytest.approx(0.2, rel=0.02)
    assert not torch.equal(first["a"], first["b"])
    other = dict(injection.apply(weights.items(), seed=4))
    assert not torch.equal(first["a"], other["a"])


def test_nothing_is_changed_unless_asked():
    injection = MismatchInjection()
    assert not injection.active and not injection.changes_weights
    for name, tensor in injection.apply(WEIGHTS.items(), seed=0):
        assert tensor is WEIGHTS[name]


def test_lag_is_counted_from_the_first_version():
    injection = MismatchInjection(lag=3)
    assert injection.active and not injection.changes_weights
    assert [injection.sampler_version(version) for version in (0, 2, 3, 4, 10)] == [0, 0, 0, 1, 7]
