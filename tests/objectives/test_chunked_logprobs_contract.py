"""What chunked log-probabilities cost and refuse: memory, products, dtypes, re-pointed weights."""

import gc
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf_algos.objectives import chunked_logprobs
from rlhf_algos.objectives import chunked_projection as projection
from tests.objectives.projection_cases import make, plain


class CountProducts(TorchDispatchMode):
    """Counts matrix products, and notes the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.products, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.products += func.overloadpacket in (
            torch.ops.aten.mm,
            torch.ops.aten.addmm_,
            torch.ops.aten.addmm,
        )
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize(("frozen", "products"), [("none", 3), ("weight", 2), ("hidden", 2)])
def test_gradients_that_nobody_needs_are_not_computed(frozen, products):
    hidden, weight, _, targets, _ = make()
    hidden.requires_grad_(frozen != "hidden")
    weight.requires_grad_(frozen != "weight")
    result = chunked_logprobs(hidden, weight, targets)
    with CountProducts() as counter:
        result.logprobs.sum().backward()
    assert counter.products == products
    assert (hidden.grad is None) == (frozen == "hidden")
    assert (weight.grad is None) == (frozen == "weight")


def test_results_without_upstream_gradient_cost_nothing():
    hidden, weight, _, targets, head_ids = make()
    result = chunked_logprobs(hidden, weight, targets, head_ids=head_ids, with_entropy=True)
    result.head_logprobs.sum().backward()
    expected = torch.autograd.grad(plain(hidden, weight, targets, head_ids=head_ids)[1].sum(), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected)


def test_nothing_as_large_as_the_logits_is_made_or_kept():
    tokens, vocabulary, width, chunk = 256, 4096, 8, 64
    hidden, weight, _, targets, head_ids = make(tokens, vocabulary, width, 4, torch.float32)
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t),
        CountProducts() as counter,
    ):
        result = chunked_logprobs(hidden, weight, targets, head_ids=head_ids, with_entropy=True, chunk_size=chunk)
        (result.logprobs.sum() + result.entropy.sum()).backward()
    assert max(saved) == vocabulary * width
    assert counter.largest <= max(tokens * chunk, vocabulary * width)
    assert counter.largest < tokens * vocabulary / 16


@pytest.mark.parametrize("product_dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_inputs(product_dtype, monkeypatch):
    monkeypatch.setattr(projection, "product_dtype_of", lambda dtype, device: product_dtype)
    hidden, weight, bias, targets, head_ids = make(tokens=64, vocabulary=96, width=16, dtype=torch.bfloat16)
    options = {"head_ids": head_ids, "temperature": 0.8}
    got = chunked_logprobs(hidden, weight, targets, bias=bias, with_entropy=True, chunk_size=40, **options)
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    expected = plain(exact[0], exact[1], targets, bias=exact[2], **options)
    tolerance = 1e-5 if product_dtype == torch.float32 else 0.08  # bfloat16 logits near 10 are spaced 1/16
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=1e-5)
    sum(value.sum() for value in got).backward()
    sum(value.sum() for value in expected).backward()
    for one, other in zip((hidden, weight, bias), exact, strict=True):
        assert one.grad.dtype == torch.bfloat16
        error = (one.grad.double() - other.grad).norm() / other.grad.norm()
        assert error < (0.004 if product_dtype == torch.float32 else 0.02)


def test_weight_may_be_released_and_gathered_again():  # DeepSpeed ZeRO-3
    hidden, weight, _, targets, _ = make()
    parameter = torch.nn.Parameter(weight.detach().clone())
    loss = chunked_logprobs(hidden, parameter, targets).logprobs.sum()
    full = parameter.data
    parameter.data = torch.empty(0, dtype=torch.float64)
    parameter.data = full.clone()
    del full
    gc.collect()
    loss.backward()
    expected = torch.autograd.grad(plain(hidden, weight, targets)[0].sum(), [hidden, weight])
    torch.testing.assert_close(hidden.grad, expected[0])
    torch.testing.assert_close(parameter.grad, expected[1])


@pytest.mark.parametrize(
    ("product_dtype", "autocast_dtype"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16)]
)
def test_autocast_changes_nothing(product_dtype, autocast_dtype, monkeypatch):
    monkeypatch.setattr(projection, "product_dtype_of", lambda dtype, device: product_dtype)
    hidden, weight, _, targets, _ = make(dtype=torch.bfloat16)

    def run():
        result = chunked_logprobs(hidden, weight, targets, chunk_size=20).logprobs
        return result, *torch.autograd.grad(result.sum(), [hidden, weight])

    expected = run()
    with torch.autocast("cpu", dtype=autocast_dtype):
        got = run()
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("bad", [-100, -1, 50])
def test_ids_outside_the_vocabulary_are_refused(bad):
    hidden, weight, _, targets, head_ids = make()
    wrong, wrong_head = targets.clone(), head_ids.clone()
    wrong[4], wrong_head[4, 2] = bad, bad
    with pytest.raises(IndexError, match=rf"targets must lie in \[0, 50\); got values from .*{bad}"):
        chunked_logprobs(hidden, weight, wrong)
    with pytest.raises(IndexError, match=r"head_ids must lie in \[0, 50\)"):
        chunked_logprobs(hidden, weight, targets, head_ids=wrong_head)


def test_refusals():
    hidden, weight, bias, targets, head_ids = make(dtype=torch.float32)
    with pytest.raises(TypeError, match=r"one dtype; got torch\.bfloat16 and torch\.float32"):
        chunked_logprobs(hidden.bfloat16(), weight, targets)
    with pytest.raises(TypeError, match=r"hidden and bias must have one dtype; got torch\.float32 and torch\.float64"):
        chunked_logprobs(hidden, weight, targets, bias=bias.double())
    with pytest.raises(TypeError, match="hidden must be"):
        chunked_logprobs(hidden.long(), weight.long(), targets)
    with pytest.raises(ValueError, match=r"weight must have shape \[V, 7\] with V > 0; got \(7, 50\)"):
        chunked_logprobs(hidden, weight.t(), targets)
    with pytest.raises(ValueError, match="hidden must have 2 dimension"):
        chunked_logprobs(hidden[0], weight, targets)
    with pytest.raises(ValueError, match=r"bias must have shape \(50,\); got \(11,\)"):
        chunked_logprobs(hidden, weight, targets, bias=bias[:11])
    with pytest.raises(ValueError, match=r"targets must have shape \(11,\)"):
        chunked_logprobs(hidden, weight, targets[:3])
    with pytest.raises(ValueError, match=r"head_ids must have shape \(11, k\)"):
        chunked_logprobs(hidden, weight, targets, head_ids=head_ids[:3])
    with pytest.raises(ValueError, match="head_ids must have 2 dimension"):
        chunked_logprobs(hidden, weight, targets, head_ids=targets)
    with pytest.raises(TypeError, match="targets must be"):
        chunked_logprobs(hidden, weight, targets.int())
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="temperature must be finite and positive"):
            chunked_logprobs(hidden, weight, targets, temperature=temperature)
    with pytest.raises(ValueError, match="chunk_size must be at least 1; got 0"):
        chunked_logprobs(hidden, weight, targets, chunk_size=0)
