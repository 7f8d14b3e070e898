"""The oracle by enumeration: MATH 5.3 and MATH 7; held against autograd, loops and hand-made numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_algos.objectives.oracle import estimator_moments, weight_bias
from tests.objectives.centering_cases import (
    WEIGHTS,
    ascent,
    distributions,
    float64,
    seeds,
    vocabularies,
    weight_names,
)


def random_case(vocabulary, seed):
    """Logits, q and advantages."""
    advantages = torch.randn(vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    return *distributions(vocabulary, seed), advantages


def close(got, expected, tolerance=1e-10):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


def test_worked_case():
    # p = (0.6, 0.4), q = (0.5, 0.5), A = (1, 0): s_0 = (0.4, -0.4), E_p[A s] = 0.6 s_0, mu = (-0.1, 0.1).
    logits, q, advantages = float64([0.6, 0.4]).log(), float64([0.5, 0.5]), float64([1.0, 0.0])
    uncentered = estimator_moments(logits, q, advantages, WEIGHTS["none"])
    assert uncentered.mean.tolist() == pytest.approx([0.2, -0.2])
    assert uncentered.variance.item() == pytest.approx(0.08)
    assert uncentered.on_policy.tolist() == pytest.approx([0.24, -0.24])
    assert uncentered.bias.tolist() == pytest.approx([-0.04, 0.04])
    centered = estimator_moments(logits, q, advantages, WEIGHTS["none"], centering="exact")
    assert centered.mean.tolist() == pytest.approx([0.25, -0.25])
    assert centered.variance.item() == pytest.approx(0.125)
    assert centered.bias.tolist() == pytest.approx([0.01, -0.01])
    on_policy = estimator_moments(logits, q, advantages, WEIGHTS["none"], sampled_from="trainer")
    assert on_policy.mean.tolist() == pytest.approx([0.24, -0.24])
    assert on_policy.variance.item() == pytest.approx(0.0768)
    # With a constant advantage nothing is left of the mean: that is section 7's number.
    ones = torch.ones_like(advantages)
    assert estimator_moments(logits, q, ones, WEIGHTS["none"]).mean.tolist() == pytest.approx([-0.1, 0.1])
    mean = estimator_moments(logits, q, ones, WEIGHTS["none"], centering="exact").mean
    assert mean.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_head_by_hand():
    # The q and p of test_score_centering.py, a head of one: q_hat = (0.7, 0.18, 0.12); mu = q_hat - p for weight 1.
    q, p = float64([0.7, 0.2, 0.1]), float64([0.5, 0.3, 0.2])
    moments = estimator_moments(p.log(), q, torch.ones(3).double(), WEIGHTS["none"], centering="head", head_size=1)
    # E_q[s] - mu = (q - p) - (q_hat - p)
    assert moments.mean.tolist() == pytest.approx([0.0, 0.02, -0.02], abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(vocabularies, seeds, weight_names)
def test_means_equal_autograd(vocabulary, seed, name):
    logits, q, advantages = random_case(vocabulary, seed)
    moments = estimator_moments(logits, q, advantages, WEIGHTS[name])
    logits.requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    # The on-policy gradient is the gradient of the expected advantage itself.
    (on_policy,) = torch.autograd.grad((logprobs.exp() * advantages).sum(), logits, retain_graph=True)
    close(moments.on_policy, on_policy)
    weights = WEIGHTS[name](logprobs.detach().exp() / q)
    (mean,) = torch.autograd.grad((q * weights * advantages * logprobs).sum(), logits)
    close(moments.mean, mean)
    close(moments.bias, mean - on_policy)
    assert moments.variance >= 0.0


@settings(deadline=None, max_examples=60)
@given(vocabularies, seeds, weight_names, st.sampled_from(["none", "exact", "head"]), st.booleans(), st.data())
def test_moments_equal_loops_over_the_losses(vocabulary, seed, name, centering, on_policy, data):
    logits, q, advantages = random_case(vocabulary, seed)
    head_size = data.draw(st.integers(1, vocabulary + 1)) if centering == "head" else None
    moments = estimator_moments(
        logits,
        q,
        advantages,
        WEIGHTS[name],
        centering=centering,
        head_size=head_size,
        sampled_from="trainer" if on_policy else "rollout",
    )
    whole = head_size is None or head_size >= vocabulary
    rows = [
        ascent(
            logits,
            q,
            action,
            advantages[action].item(),
            WEIGHTS[name],
            centered=centering != "none",
            head_ids=None if whole else q.topk(head_size).indices,
            exact=whole,
        ).tolist()
        for action in range(vocabulary)
    ]
    choices = (torch.softmax(logits, 0) if on_policy else q).tolist()
    mean = [math.fsum(c * row[i] for c, row in zip(choices, rows, strict=True)) for i in range(vocabulary)]
    variance = math.fsum(
        c * (row[i] - mean[i]) ** 2 for c, row in zip(choices, rows, strict=True) for i in range(vocabulary)
    )
    assert moments.mean.tolist() == pytest.approx(mean, abs=1e-10)
    assert moments.variance.item() == pytest.approx(variance, rel=1e-9, abs=1e-10)


@settings(deadline=None, max_examples=60)
@given(vocabularies, seeds, weight_names, st.floats(-5, 5))
def test_exact_centering_leaves_the_covariance(vocabulary, seed, name, constant):  # (7.1)
    logits, q, advantages = random_case(vocabulary, seed)

    def mean(values, centering):
        return estimator_moments(logits, q, values, WEIGHTS[name], centering=centering).mean

    got = mean(advantages, "exact")
    close(got, mean(advantages, "none") - (q @ advantages) * mean(torch.ones_like(q), "none"))
    close(got, mean(advantages + constant, "exact"))


@settings(deadline=None, max_examples=30)
@given(vocabularies, seeds)
def test_importance_weights_have_no_bias_and_nothing_to_center(vocabulary, seed):  # (7.4)
    logits, q, advantages = random_case(vocabulary, seed)
    plain = estimator_moments(logits, q, advantages, WEIGHTS["importance"])
    centered = estimator_moments(logits, q, advantages, WEIGHTS["importance"], centering="exact")
    assert plain.bias.abs().max() < 1e-10
    close(centered.mean, plain.mean)
    close(centered.variance, plain.variance)


def test_head_of_everything_is_exact():  # (7.8)
    logits, q, advantages = random_case(5, 0)
    exact = estimator_moments(logits, q, advantages, WEIGHTS["tis"], centering="exact")
    for head_size in (5, 6):
        head = estimator_moments(logits, q, advantages, WEIGHTS["tis"], centering="head", head_size=head_size)
        assert torch.equal(head.mean, exact.mean)
    smaller = estimator_moments(logits, q, advantages, WEIGHTS["tis"], centering="head", head_size=2)
    assert not torch.allclose(smaller.mean, exact.mean, atol=1e-3)


def test_head_is_the_samplers_most_probable_tokens():
    # Token 2 is first under q, token 0 under p; tokens 0 and 1 are equal under q, so a head of two holds token 0.
    p, q = float64([0.6, 0.3, 0.1]), float64([0.25, 0.25, 0.5])
    ones = torch.ones(3, dtype=torch.float64)
    for head_size, ids in ((1, [2]), (2, [2, 0])):
        moments = estimator_moments(p.log(), q, ones, WEIGHTS["none"], centering="head", head_size=head_size)
        q_hat = (1 - q[ids].sum()) / (1 - p[ids].sum()) * p
        q_hat[ids] = q[ids]
        close(moments.mean, q - q_hat)


@pytest.mark.parametrize(
    ("p", "q", "tail"),
    # alpha = 0.4 / 0.2 instead of 0.4 / 0.1, and 0.2 / 0.4 instead of 0.1 / 0.4: in both the tail weighs 0.2.
    [([0.9, 0.1], [0.6, 0.4], 0.2), ([0.6, 0.4], [0.9, 0.1], 0.2)],
)
def test_tail_floor_changes_the_answer(p, q, tail):  # (7.7)
    p, q, ones = float64(p), float64(q), torch.ones(2, dtype=torch.float64)
    moments = estimator_moments(p.log(), q, ones, WEIGHTS["none"], centering="head", head_size=1, tail_floor=0.2)
    # The head's parts of E_q[s] and mu are equal; s_1 = (-p_0, p_0).
    close(moments.mean, (q[1] - tail) * p[0] * float64([-1.0, 1.0]))


def test_head_holds_no_token_of_probability_zero():
    p, q, ones = float64([0.5, 0.3, 0.2]), float64([0.8, 0.2, 0.0]), torch.ones(3, dtype=torch.float64)
    # With the weight p / q the tail's part is the on-policy one, sum of p_v s_v, whatever alpha is: nothing is left.
    q_of_one, importance = float64([1.0, 0.0, 0.0]), WEIGHTS["importance"]
    moments = estimator_moments(p.log(), q_of_one, ones, importance, centering="head", head_size=2)
    close(moments.mean, p[0] * float64([0.5, -0.3, -0.2]))
    # The whole vocabulary has no tail (7.8), not even for a token that only the trainer knows.
    exact = estimator_moments(p.log(), q, ones, importance, centering="exact")
    whole = estimator_moments(p.log(), q, ones, importance, centering="head", head_size=3)
    assert torch.equal(whole.mean, exact.mean)


def test_token_that_the_sampler_never_takes():
    p, q, advantages = float64([0.5, 0.3, 0.2]), float64([0.6, 0.4, 0.0]), float64([1.0, -1.0, 5.0])
    for centering, head_size in (("none", None), ("exact", None), ("head", 2), ("head", 1)):
        moments = estimator_moments(p.log(), q, advantages, WEIGHTS["tis"], centering=centering, head_size=head_size)
        assert moments.mean.isfinite().all()
        assert moments.variance.isfinite()
    moments = estimator_moments(p.log(), q, advantages, WEIGHTS["importance"])
    # What is missing is that token's part of the on-policy gradient.
    close(moments.bias, -0.2 * 5.0 * float64([-0.5, -0.3, 0.8]))


def test_importance_ratio_is_clamped():  # (5.6)
    # p_0 / q_0 = 5e11 counts as e^20 = 4.85e8; s_0 = (0.5, -0.5).
    q, advantages = float64([1e-12, 1.0 - 1e-12]), float64([1.0, 0.0])
    moments = estimator_moments(torch.zeros(2).double(), q, advantages, WEIGHTS["importance"])
    assert moments.mean.tolist() == pytest.approx([0.5e-12 * math.exp(20), -0.5e-12 * math.exp(20)])


def expectation_difference(values, p, q, weight_fn):
    """E_q[w f] - E_p[f], the left-hand side of (5.3), by a loop."""
    weights = weight_fn(p / q).tolist()
    terms = zip(values.tolist(), p.tolist(), q.tolist(), weights, strict=True)
    return math.fsum(q_a * w_a * f_a - p_a * f_a for f_a, p_a, q_a, w_a in terms)


@settings(deadline=None, max_examples=100)
@given(vocabularies, seeds, weight_names)
def test_bias_of_any_weight(vocabulary, seed, name):  # (5.3)
    logits, q, values = random_case(vocabulary, seed)
    p = torch.softmax(logits, 0)
    got = weight_bias(values, p, q, WEIGHTS[name]).item()
    assert got == pytest.approx(expectation_difference(values, p, q, WEIGHTS[name]), abs=1e-10)


@settings(deadline=None, max_examples=100)
@given(vocabularies, seeds)
def test_bias_of_truncation_and_of_masking(vocabulary, seed):  # (5.3), the two special forms
    logits, q, values = random_case(vocabulary, seed)
    p = torch.softmax(logits, 0)
    triples = list(zip(q.tolist(), (p / q).tolist(), values.tolist(), strict=True))
    truncated = -math.fsum(q_a * (rho - 2.0) * f for q_a, rho, f in triples if rho > 2.0)
    masked = -math.fsum(q_a * rho * f for q_a, rho, f in triples if not 0.5 <= rho <= 2.0)
    assert weight_bias(values, p, q, WEIGHTS["tis"]).item() == pytest.approx(truncated, abs=1e-10)
    assert weight_bias(values, p, q, WEIGHTS["icepop"]).item() == pytest.approx(masked, abs=1e-10)


def test_bias_by_hand():  # rho = 4 has weight 2 under TIS and 0 under IcePop
    p, q, values = float64([0.4, 0.4, 0.2]), float64([0.1, 0.5, 0.4]), float64([1.0, 3.0, -5.0])
    assert weight_bias(values, p, q, WEIGHTS["tis"]).item() == pytest.approx(-0.1 * (4 - 2) * 1.0)
    # rho = 0.8 is inside, 0.5 too, being the end of the band
    assert weight_bias(values, p, q, WEIGHTS["icepop"]).item() == pytest.approx(-0.4)
    assert weight_bias(values, p, q, WEIGHTS["importance"]).item() == pytest.approx(0.0, abs=1e-12)
    # f = 1: 0.1 (1 - 4) 1 + 0.5 (1 - 0.8) 3 + 0.4 (1 - 0.5) (-5)
    assert weight_bias(values, p, q, WEIGHTS["none"]).item() == pytest.approx(-0.3 + 0.3 - 1.0)


@settings(deadline=None, max_examples=30)
@given(vocabularies, seeds, weight_names)
def test_bias_of_the_gradient_is_that_of_its_entries(vocabulary, seed, name):  # (5.3) with f = A s
    logits, q, advantages = random_case(vocabulary, seed)
    p = torch.softmax(logits, 0)
    values = advantages[:, None] * (torch.eye(vocabulary, dtype=torch.float64) - p)
    expected = torch.stack([weight_bias(column.contiguous(), p, q, WEIGHTS[name]) for column in values.unbind(1)])
    close(estimator_moments(logits, q, advantages, WEIGHTS[name]).bias, expected)


def test_bias_where_one_side_never_goes():
    # q = 0 where p > 0: the right-hand side of (5.3), which leaves that choice out.
    p, q, values = float64([0.5, 0.5, 0.0]), float64([0.5, 0.0, 0.5]), float64([1.0, 7.0, 2.0])
    assert weight_bias(values, p, q, WEIGHTS["none"]).item() == pytest.approx(0.5 * 0.0 * 1.0 + 0.5 * 1.0 * 2.0)


def test_results_are_detached():
    logits, q, advantages = random_case(4, 1)
    moments = estimator_moments(logits.requires_grad_(), q, advantages, WEIGHTS["importance"])
    assert not moments.mean.requires_grad
    assert not moments.variance.requires_grad
    assert moments.variance.shape == ()


def test_refusals():
    logits, q, advantages = random_case(3, 2)
    weight_fn = WEIGHTS["none"]
    with pytest.raises(TypeError, match=r"logits must be torch\.float64; got torch\.float32"):
        estimator_moments(logits.float(), q, advantages, weight_fn)
    with pytest.raises(TypeError, match="advantages must be"):
        estimator_moments(logits, q, advantages.float(), weight_fn)
    with pytest.raises(TypeError, match="rollout_probs must be"):
        estimator_moments(logits, q.float(), advantages, weight_fn)
    with pytest.raises(ValueError, match=r"advantages must have the shape of logits: expected \(3,\), got \(2,\)"):
        estimator_moments(logits, q, advantages[:2], weight_fn)
    with pytest.raises(ValueError, match="rollout_probs must be at least 0 everywhere and sum to 1; the sum is 2.0"):
        estimator_moments(logits, 2 * q, advantages, weight_fn)
    for bad in ([-0.5, 1.0, 0.5], [math.nan, 0.5, 0.5]):
        with pytest.raises(ValueError, match="rollout_probs must be at least 0 everywhere"):
            estimator_moments(logits, float64(bad), advantages, weight_fn)
    with pytest.raises(ValueError, match=r"centering must be one of \('none', 'exact', 'head'\); got 'full'"):
        estimator_moments(logits, q, advantages, weight_fn, centering="full")
    with pytest.raises(ValueError, match="only centering 'head' uses head_size; got 2 with 'exact'"):
        estimator_moments(logits, q, advantages, weight_fn, centering="exact", head_size=2)
    for head_size in (None, 0):
        with pytest.raises(ValueError, match=f"centering 'head' needs head_size of at least 1; got {head_size}"):
            estimator_moments(logits, q, advantages, weight_fn, centering="head", head_size=head_size)
    with pytest.raises(ValueError, match=r"sampled_from must be one of \('rollout', 'trainer'\); got 'q'"):
        estimator_moments(logits, q, advantages, weight_fn, sampled_from="q")
    with pytest.raises(ValueError, match=r"tail_floor must lie in \(0, 1\); got 0\.0"):
        estimator_moments(logits, q, advantages, weight_fn, tail_floor=0.0)
    with pytest.raises(ValueError, match="trainer_probs must be at least 0 everywhere"):
        weight_bias(advantages, 2 * q, q, weight_fn)
    with pytest.raises(ValueError, match="rollout_probs must be at least 0 everywhere"):
        weight_bias(advantages, q, 2 * q, weight_fn)
    with pytest.raises(ValueError, match="trainer_probs must have the shape of values"):
        weight_bias(advantages[:2], q, q, weight_fn)
    with pytest.raises(TypeError, match="values must be"):
        weight_bias(advantages.float(), q, q, weight_fn)
