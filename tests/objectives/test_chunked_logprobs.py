"""Log-probabilities from hidden states: MATH 1; temperature, low precision, alignment with the targets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_algos.objectives import chunked_logprobs
from tests.objectives.projection_cases import make, plain

CHUNKS = [1, 3, None]


def from_logits(rows, targets, **options):
    """Hidden states and head whose logits are exactly the given rows."""
    logits = torch.tensor(rows)
    return chunked_logprobs(torch.eye(len(rows)), logits.t().contiguous(), torch.tensor(targets), **options)


@pytest.mark.parametrize("chunk_size", CHUNKS)
def test_temperature(chunk_size):
    options = {"temperature": 0.5, "head_ids": torch.tensor([[0, 1, 2]]), "with_entropy": True}
    result = from_logits([[2.0, 1.0, 0.0]], [1], chunk_size=chunk_size, **options)
    assert result.logprobs.tolist() == pytest.approx([-2.142932], abs=1e-6)
    assert result.head_logprobs.tolist()[0] == pytest.approx([-0.142932, -2.142932, -4.142932], abs=1e-6)
    assert result.head_logprobs.exp().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("chunk_size", CHUNKS)
@pytest.mark.parametrize(("temperature", "entropy"), [(0.5, 0.441057), (1.0, 0.832396), (2.0, 1.020191)])
def test_entropy_is_that_of_the_tempered_distribution(temperature, entropy, chunk_size):
    result = from_logits([[2.0, 1.0, 0.0]], [1], temperature=temperature, with_entropy=True, chunk_size=chunk_size)
    assert result.entropy.item() == pytest.approx(entropy, abs=1e-6)


@pytest.mark.parametrize("chunk_size", CHUNKS)
def test_bfloat16_logits_are_normalized_in_float32(chunk_size):
    logits = torch.tensor([[12, 11.5, 3, 2, 0, -1.5, -4, -6]], dtype=torch.bfloat16)
    hidden = torch.ones(1, 1, dtype=torch.bfloat16)
    head_ids = torch.arange(8)[None]
    result = chunked_logprobs(
        hidden, logits.t().contiguous(), torch.tensor([2]), head_ids=head_ids, chunk_size=chunk_size
    )
    expected = torch.log_softmax(logits.double(), -1)
    assert expected[0, :3].tolist() == pytest.approx([-0.474187, -0.974187, -9.474187], abs=1e-6)
    assert result.logprobs.dtype == torch.float32
    assert result.logprobs.item() == pytest.approx(expected[0, 2].item(), abs=1e-5)
    torch.testing.assert_close(result.head_logprobs.double(), expected, atol=1e-5, rtol=0)


# A bigram model: logits depend on the previous token only.
BIGRAM = [[0.0, 1, 2, 0], [2.0, 0, 1, 0], [1.0, 1, 0, 2], [0.0, 0, 0, 0]]


def bigram_logprobs(sequence, prompt_length):
    """Log-prob of each response token, from the hidden state of the token before it."""
    hidden = torch.eye(4)[sequence[prompt_length - 1 : -1]]
    weight = torch.tensor(BIGRAM).t().contiguous()
    return chunked_logprobs(hidden, weight, torch.tensor(sequence[prompt_length:])).logprobs


def test_result_is_aligned_with_its_targets():
    # prompt [0, 2], response [3, 1, 0]; log p(3|2), log p(1|3), log p(0|1)
    got = bigram_logprobs([0, 2, 3, 1, 0], 2)
    assert got.tolist() == pytest.approx([-0.626523, -1.386294, -0.493812], abs=1e-6)
    # the same tokens after a prompt of one token, and two responses of unequal length in one flat batch
    assert bigram_logprobs([2, 3, 1, 0], 1).tolist() == got.tolist()
    hidden = torch.eye(4)[[2, 3, 1, 0]]  # rows: 2 -> 3, 3 -> 1, 1 -> 0 | 0 -> 2
    weight = torch.tensor(BIGRAM).t().contiguous()
    flat = chunked_logprobs(hidden, weight, torch.tensor([3, 1, 0, 2])).logprobs
    assert flat.tolist() == pytest.approx([-0.626523, -1.386294, -0.493812, -0.493812], abs=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 3, 50, 64, None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_equal_the_full_log_softmax(chunk_size, temperature, with_bias):
    hidden, weight, bias, targets, head_ids = make(tokens=33, dtype=torch.float32)
    options = {"temperature": temperature, "bias": bias if with_bias else None, "head_ids": head_ids}
    inputs = [hidden, weight, bias] if with_bias else [hidden, weight]
    upstream = [torch.randn(33), torch.randn(33, 6), torch.randn(33)]
    got = chunked_logprobs(hidden, weight, targets, with_entropy=True, chunk_size=chunk_size, **options)
    expected = plain(hidden, weight, targets, **options)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(got, inputs, upstream)
    for one, other in zip(gradients, torch.autograd.grad(expected, inputs, upstream), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk_size", CHUNKS)
@pytest.mark.parametrize("outputs", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_gradcheck_of_every_combination_of_results(chunk_size, outputs):
    hidden, weight, bias, targets, head_ids = make(tokens=4, vocabulary=7, width=3, head=4)

    def function(hidden, weight, bias):
        result = chunked_logprobs(
            hidden,
            weight,
            targets,
            temperature=0.7,
            bias=bias,
            head_ids=head_ids,
            with_entropy=True,
            chunk_size=chunk_size,
        )
        return tuple(result[index] for index in outputs)

    assert torch.autograd.gradcheck(function, (hidden, weight, bias))


def test_upstream_gradients_of_target_and_head_that_cancel():
    # A head that is the whole vocabulary, weighted by p, has gradient 0: sum_a p_a s_a = 0 (1.1).
    hidden, weight, _, targets, _ = make(tokens=5, vocabulary=8)
    head_ids = torch.arange(8).expand(5, 8)
    result = chunked_logprobs(hidden, weight, targets, head_ids=head_ids, chunk_size=3)
    gradients = torch.autograd.grad(
        (result.head_logprobs.exp().detach() * result.head_logprobs).sum(), [hidden, weight]
    )
    for gradient in gradients:
        assert gradient.abs().max() < 1e-12


def test_a_token_repeated_in_the_head_counts_twice():
    hidden, weight, _, targets, _ = make(tokens=3)
    twice = targets[:, None].expand(3, 2)
    result = chunked_logprobs(hidden, weight, targets, head_ids=twice, chunk_size=4)
    torch.testing.assert_close(result.head_logprobs, result.logprobs[:, None].expand(3, 2))
    (single,) = torch.autograd.grad(result.logprobs.sum(), hidden, retain_graph=True)
    (double,) = torch.autograd.grad(result.head_logprobs.sum(), hidden)
    torch.testing.assert_close(double, 2 * single)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 45),
    st.floats(0.2, 5),
    st.integers(0, 4),
    st.integers(0, 9),
)
def test_any_shape_and_any_chunk(tokens, vocabulary, chunk_size, temperature, head, seed):
    hidden, weight, _, targets, head_ids = make(tokens, vocabulary, 5, head, seed=seed)
    options = {"temperature": temperature, "head_ids": head_ids}
    got = chunked_logprobs(hidden, weight, targets, with_entropy=True, chunk_size=chunk_size, **options)
    expected = plain(hidden, weight, targets, **options)
    weighted = torch.linspace(-1, 2, tokens, dtype=torch.float64)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    sums = [
        torch.autograd.grad((r[0] * weighted).sum() + r[1].square().sum() + (r[2] * weighted).sum(), [hidden, weight])
        for r in (got, expected)
    ]
    for one, other in zip(*sums, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_large_logits_do_not_overflow():
    result = from_logits([[3000.0, 2999.0, -5000.0]], [1], with_entropy=True, chunk_size=1)
    expected = torch.log_softmax(torch.tensor([1.0, 0.0]), 0)
    assert result.logprobs.item() == pytest.approx(expected[1].item(), abs=1e-3)  # float32 of 3000
    assert result.entropy.item() == pytest.approx(-(expected.exp() * expected).sum().item(), abs=1e-3)


def test_optional_results_are_absent_unless_asked_for():
    hidden, weight, _, targets, _ = make()
    result = chunked_logprobs(hidden, weight, targets)
    assert result.head_logprobs is None
    assert result.entropy is None


def test_no_tokens():
    hidden, weight, bias, targets, head_ids = make(tokens=0)
    result = chunked_logprobs(hidden, weight, targets, bias=bias, head_ids=head_ids, with_entropy=True)
    assert [tuple(value.shape) for value in result] == [(0,), (0, 6), (0,)]
    sum(value.sum() for value in result).backward()
    assert hidden.grad.shape == (0, 7)
    assert weight.grad.abs().max() == 0.0
    assert bias.grad.abs().max() == 0.0
