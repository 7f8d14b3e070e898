"""k1, k2, k3 against the exact divergence."""

import math

import pytest
import torch

from rlhf_algos.objectives import kl_estimate


@pytest.mark.parametrize(
    ("kind", "expected", "gradient"),
    [
        # p = 1/2, p_ref = 1/4: d = log p_ref - log p = -log 2
        ("k1", math.log(2), 1.0),
        ("k2", math.log(2) ** 2 / 2, math.log(2)),
        ("k3", 0.5 - 1 + math.log(2), 1 - 0.5),
    ],
)
def test_one_token(kind, expected, gradient):
    logprobs = torch.tensor([math.log(0.5)], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([math.log(0.25)], dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(logprobs, reference, kind=kind)
    assert estimate.item() == pytest.approx(expected)
    estimate.sum().backward()
    assert logprobs.grad.item() == pytest.approx(gradient)
    assert reference.grad is None


def expectation(kind, logits, reference):
    """Value and gradient of sum_a p_a k(a) with p_a held fixed: what sampling from p gives on average."""
    logprobs = torch.log_softmax(logits, 0)
    estimate = kl_estimate(logprobs, reference, kind=kind)
    mean = (logprobs.exp().detach() * estimate).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    return mean.detach(), gradient


@pytest.fixture
def policies():
    logits = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([1.0, 0.2, 0.7, -0.4], dtype=torch.float64), 0)
    return logits, reference


def exact(logits, reference):
    logprobs = torch.log_softmax(logits, 0)
    kl = (logprobs.exp() * (logprobs - reference)).sum()
    reverse = (reference.exp() * (reference - logprobs)).sum()
    return kl, torch.autograd.grad(kl, logits, retain_graph=True)[0], torch.autograd.grad(reverse, logits)[0]


def test_k1_and_k3_have_the_right_mean_and_k2_has_not(policies):
    kl = exact(*policies)[0].detach()
    torch.testing.assert_close(expectation("k1", *policies)[0], kl)
    torch.testing.assert_close(expectation("k3", *policies)[0], kl)
    assert abs(expectation("k2", *policies)[0] - kl) > 0.01


def test_mean_gradients_are_those_of_the_docstring(policies):
    _, gradient, reverse_gradient = exact(*policies)
    torch.testing.assert_close(expectation("k1", *policies)[1], torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(expectation("k2", *policies)[1], gradient)
    torch.testing.assert_close(expectation("k3", *policies)[1], reverse_gradient)
    assert (gradient - reverse_gradient).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_gradcheck(kind):
    logprobs = torch.tensor([-0.1, -1.0, -3.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.4, -0.9, -3.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda lp: kl_estimate(lp, reference, kind=kind), (logprobs,))


def test_k3_is_accurate_for_tiny_differences():
    logprobs = torch.tensor([-1.0], dtype=torch.float64)
    assert kl_estimate(logprobs, logprobs + 1e-8, kind="k3").item() == pytest.approx(5e-17, rel=1e-3, abs=0)


def test_k3_stays_finite_and_one_sided_differences_keep_their_gradient():
    logprobs = torch.tensor([-800.0, 0.0], requires_grad=True)
    estimate = kl_estimate(logprobs, torch.tensor([0.0, -800.0]), kind="k3")
    assert estimate.tolist() == pytest.approx([math.exp(20) - 21, 799.0], rel=1e-5)
    estimate.sum().backward()
    assert logprobs.grad.tolist() == [0.0, 1.0]


def test_refusals():
    zeros = torch.zeros(2)
    with pytest.raises(ValueError, match=r"kind must be one of \('k1', 'k2', 'k3'\); got 'k4'"):
        kl_estimate(zeros, zeros, kind="k4")
    with pytest.raises(ValueError, match="ref_logprobs must have the shape of logprobs"):
        kl_estimate(zeros, zeros[:1], kind="k1")
    with pytest.raises(TypeError, match="ref_logprobs"):
        kl_estimate(zeros, zeros.half(), kind="k1")
