"""Score centering: MATH 7."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_algos.objectives import (
    centered_reinforce_loss,
    chunked_logprobs,
    reinforce_loss,
    renormalize_on_support,
    score_centering_term,
)
from tests.objectives.centering_cases import (
    WEIGHTS,
    ascent,
    distributions,
    float64,
    seeds,
    vocabularies,
    weight_names,
)

# The expected gradients: A (e_0 - q) is the first, and the uncentered sum is q - p.
Q, P = float64([0.7, 0.2, 0.1]), float64([0.5, 0.3, 0.2])
CENTERED = [[0.3, -0.2, -0.1], [-0.7, 0.8, -0.1], [-0.7, -0.2, 0.9]]


def centered_ascent(action, *, advantage=1.0, q=Q, p=P, **options):
    return ascent(p.log(), q, action, advantage, WEIGHTS["none"], **options).tolist()


def test_worked_case():
    p, q = float64([0.6, 0.4]), float64([0.5, 0.5])
    for centered, expected in ((False, [-0.1, 0.1]), (True, [0.0, 0.0])):
        rows = [ascent(p.log(), q, a, 1.0, WEIGHTS["none"], centered=centered, exact=True) for a in range(2)]
        assert (q @ torch.stack(rows)).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("action", [0, 1, 2])
@pytest.mark.parametrize("exact", [True, False])
def test_gradient_is_that_of_the_sampler(action, exact):  # with the whole vocabulary as head too: finite
    assert centered_ascent(action, exact=exact) == pytest.approx(CENTERED[action], abs=1e-12)
    assert centered_ascent(action, advantage=-2.0, exact=exact) == pytest.approx(
        [-2 * g for g in CENTERED[action]], abs=1e-12
    )


def test_mean_score_under_the_sampler():
    mean = Q @ float64([centered_ascent(a, exact=True) for a in range(3)])
    assert mean.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    uncentered = Q @ float64([centered_ascent(a, centered=False) for a in range(3)])
    assert uncentered.tolist() == pytest.approx([0.2, -0.1, -0.1])


def test_heads_smaller_than_the_vocabulary():
    assert centered_ascent(0, head_ids=torch.tensor([0])) == pytest.approx([0.3, -0.18, -0.12])
    for action in range(3):  # the tail of one token is known exactly
        assert centered_ascent(action, head_ids=torch.tensor([0, 1])) == pytest.approx(CENTERED[action])


def test_sampled_token_outside_the_head():  # e_2 - q_hat
    assert centered_ascent(2, head_ids=torch.tensor([0])) == pytest.approx([-0.7, -0.18, 0.88])


def test_head_mass_just_above_one():
    rollout = (Q * 1.0000001).log()[None]
    head = (P * 1.0000001).log()[None].requires_grad_()
    term, rollout_mass, trainer_mass = score_centering_term(head, rollout, WEIGHTS["none"])
    term.sum().backward()
    # Both tails are at the floor: alpha is 1, and the gradient q - p.
    assert head.grad.tolist()[0] == pytest.approx((Q - P).tolist(), abs=1e-6)
    assert math.isfinite(term.item())
    assert rollout_mass.item() == pytest.approx(1.0000001, abs=1e-12)
    assert trainer_mass.item() == pytest.approx(1.0000001, abs=1e-12)


def test_equal_policies_need_no_centering():
    for action in range(3):
        for head_ids in (None, torch.tensor([0])):
            centered = centered_ascent(action, q=P, head_ids=head_ids)
            assert centered == pytest.approx(centered_ascent(action, q=P, centered=False), abs=1e-12)


def test_without_advantage_there_is_no_gradient():
    assert centered_ascent(1, advantage=0.0) == [0.0, 0.0, 0.0]


def test_masked_tokens_contribute_nothing():
    head = P.log().expand(2, 3).clone().requires_grad_()
    rollout = torch.stack([Q.log(), torch.full((3,), -math.inf, dtype=torch.float64)])
    term, rollout_mass, trainer_mass = score_centering_term(head, rollout, WEIGHTS["none"])
    term.sum().backward()
    assert term[1].item() == 0.0
    assert head.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert (rollout_mass[1].item(), trainer_mass[1].item()) == (0.0, 0.0)
    loss = centered_reinforce_loss(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.ones(2), term.detach())
    assert loss.tolist() == [pytest.approx(term[0].item()), 0.0]


def test_only_log_p_is_differentiated():  # no gradient reaches q; nor the weight, nor the advantage
    head, rollout = P.log()[None].requires_grad_(), Q.log()[None].requires_grad_()
    term, rollout_mass, trainer_mass = score_centering_term(head, rollout, WEIGHTS["importance"])
    assert not rollout_mass.requires_grad
    assert not trainer_mass.requires_grad
    logprobs, advantages, weights = (torch.ones(1, dtype=torch.float64, requires_grad=True) for _ in range(3))
    centered_reinforce_loss(logprobs, advantages, weights, term).sum().backward()
    assert rollout.grad is None
    assert advantages.grad is None
    assert weights.grad is None
    assert logprobs.grad is not None
    assert head.grad is not None


def test_attached_weight_would_be_another_gradient():
    logits = float64([1.0, 0.0])
    assert ascent(logits, float64([0.5, 0.5]), 0, 1.0, WEIGHTS["importance"], centered=False).tolist() == (
        pytest.approx([0.393224, -0.393224], abs=1e-6)
    )
    attached = logits.requires_grad_()
    logprobs = torch.log_softmax(attached, 0)
    weight = logprobs[0].exp() / 0.5
    assert weight.item() == pytest.approx(1.462117, abs=1e-6)
    (-weight * logprobs[0]).backward()
    assert attached.grad.tolist() == pytest.approx([-0.270042, 0.270042], abs=1e-6)


def test_attached_term_would_be_another_gradient():
    # p = (0.6, 0.4), q = (0.5, 0.5), f(r) = r. Detached: sum_v p_v s_v = 0. Attached, q_v r_v being p_v:
    # sum_v p_v (1 + log p_v) s_v, first entry 0.6 * 0.4 * (log 0.6 - log 0.4) = 0.24 log 1.5 = 0.097312.
    logits, q = float64([0.6, 0.4]).log().requires_grad_(), float64([0.5, 0.5])
    logprobs = torch.log_softmax(logits, 0)
    term, _, _ = score_centering_term(logprobs[None], q.log()[None], WEIGHTS["importance"], exact=True)
    (detached,) = torch.autograd.grad(term.sum(), logits, retain_graph=True)
    assert detached.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    (attached,) = torch.autograd.grad((q * (logprobs.exp() / q) * logprobs).sum(), logits, retain_graph=True)
    assert attached.tolist() == pytest.approx([0.097312, -0.097312], abs=1e-6)
    # The same of the tail's coefficient, which holds p_v for any weight: head {0}, f = 1.
    # Detached q_0 - alpha p_0 = 0.5 - (0.5 / 0.4) 0.6 = -0.25, times s_0 = (0.4, -0.4).
    term, _, _ = score_centering_term(logprobs[None, :1], q.log()[None, :1], WEIGHTS["none"])
    assert term.item() == pytest.approx(-0.25 * math.log(0.6))
    (gradient,) = torch.autograd.grad(term.sum(), logits)
    assert gradient.tolist() == pytest.approx([-0.1, 0.1], abs=1e-12)


def test_weight_is_computed_without_gradient():
    seen = []

    def weight_fn(ratio):
        seen.append((tuple(ratio.shape), ratio.requires_grad, torch.is_grad_enabled()))
        return ratio

    head = P.log().expand(4, 3).clone().requires_grad_()
    score_centering_term(head, Q.log().expand(4, 3), weight_fn)
    assert seen == [((4, 3), False, False), ((4,), False, False)]
    score_centering_term(head, Q.log().expand(4, 3), weight_fn, exact=True)
    assert len(seen) == 3


@settings(deadline=None, max_examples=60)
@given(vocabularies, seeds, weight_names)
def test_expected_centered_score_is_zero(vocabulary, seed, name):  # (7.2)
    logits, q = distributions(vocabulary, seed)
    rows = [ascent(logits, q, a, 1.0, WEIGHTS[name], exact=True) for a in range(vocabulary)]
    assert (q @ torch.stack(rows)).abs().max() < 1e-10


@settings(deadline=None, max_examples=50)
@given(vocabularies, seeds, st.floats(-3, 3))
def test_importance_weights_on_full_support_leave_nothing_to_center(vocabulary, seed, advantage):  # (7.4)
    logits, q = distributions(vocabulary, seed)
    centered, uncentered = (
        ascent(logits, q, seed % vocabulary, advantage, WEIGHTS["importance"], centered=centered, exact=True)
        for centered in (True, False)
    )
    torch.testing.assert_close(centered, uncentered, atol=1e-12, rtol=1e-12)


def with_tail(head, vocabulary, tail_mass, seed):
    """``[V]`` probabilities whose tokens from ``head`` on hold ``tail_mass``, in the order of a seed."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(vocabulary, generator=generator, dtype=torch.float64) + 0.1
    weights[:head] *= (1.0 - tail_mass) / weights[:head].sum()
    weights[head:] *= tail_mass / weights[head:].sum()
    return weights / weights.sum()


def mean_score_of_the_model(p, q, head, weight_fn, floor):
    """``[V]`` mu_w summed over the whole vocabulary: q on the head and alpha p off it, each with its weight.

    Where a floor acts, the alpha in it is the floored one. (7.6) follows from sum_a p_a s_a = 0 alone, for any alpha,
    so this stays the exact reference; only, the measure's total is no longer 1.
    """
    alpha = torch.tensor([max(1.0 - q[:head].sum(), floor) / max(1.0 - p[:head].sum(), floor)], dtype=torch.float64)
    coefficients = torch.cat([q[:head] * weight_fn(p[:head] / q[:head]), alpha * p[head:] * weight_fn(1.0 / alpha)])
    return coefficients - coefficients.sum() * p


TAILS = [1e-9, 1e-7, 1e-5, 1e-2, 0.5, 0.9]
# The head is always the first tokens of this many.
VOCABULARY = 151


@pytest.mark.parametrize("name", sorted(WEIGHTS))
@pytest.mark.parametrize("head", [1, 8, 128])
def test_head_stands_for_the_reconstructed_distribution(head, name):  # (7.5) to (7.7)
    weight_fn = WEIGHTS[name]
    for number, (q_tail, p_tail) in enumerate((a, b) for a in TAILS for b in TAILS):
        p, q = with_tail(head, VOCABULARY, p_tail, number), with_tail(head, VOCABULARY, q_tail, 100 + number)
        expected = mean_score_of_the_model(p, q, head, weight_fn, 1e-6)
        for action in (0, VOCABULARY - 1):  # in the head and out of it
            got = ascent(p.log(), q, action, 0.7, weight_fn, head_ids=torch.arange(head))
            score = -p.clone()
            score[action] += 1.0
            weight = weight_fn((p[action] / q[action]).reshape(1))
            torch.testing.assert_close(got, 0.7 * (weight * score - expected), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_mean_over_the_reconstructed_distribution_is_zero(name):
    # Where no floor acts, the centered score has mean 0 under q_hat itself, the tail's weights being f(1 / alpha).
    weight_fn, head = WEIGHTS[name], 8
    p, q = with_tail(head, 40, 0.2, 1), with_tail(head, 40, 0.05, 2)
    q_hat = torch.cat([q[:head], (q[head:].sum() / p[head:].sum()) * p[head:]])
    assert q_hat.sum().item() == pytest.approx(1.0)
    rows = [ascent(p.log(), q_hat, a, 1.0, weight_fn, head_ids=torch.arange(head)) for a in range(40)]
    assert (q_hat @ torch.stack(rows)).abs().max() < 1e-10


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_head_that_is_the_whole_vocabulary_needs_no_tail(name):  # (7.8)
    p, q = with_tail(VOCABULARY, VOCABULARY, 0.0, 3), with_tail(VOCABULARY, VOCABULARY, 0.0, 4)
    coefficients = q * WEIGHTS[name](p / q)
    expected = coefficients - coefficients.sum() * p
    logits = p.log().requires_grad_()
    head = torch.log_softmax(logits, 0)
    for exact in (True, False):
        term, _, _ = score_centering_term(head[None], q.log()[None], WEIGHTS[name], exact=exact)
        (gradient,) = torch.autograd.grad(term.sum(), logits, retain_graph=True)
        torch.testing.assert_close(gradient, expected, atol=1e-10, rtol=1e-10)


def coefficients_of(head, rollout, weight_fn, **options):
    head = head[None].clone().requires_grad_()
    term, _, _ = score_centering_term(head, rollout[None], weight_fn, **options)
    term.sum().backward()
    return head.grad[0].tolist()


def test_coefficients_by_hand():  # (7.6)
    # Head of two: P = 0.6, Q = 0.8, alpha = 0.2 / 0.4 = 1/2. f(r) = r^2 tells f(1 / alpha) = 4 from f(alpha) = 1/4.
    p, q = float64([0.4, 0.2]), float64([0.5, 0.3])
    expected = [0.5 * 0.64 - 0.5 * 4 * 0.4, 0.3 * (2 / 3) ** 2 - 0.5 * 4 * 0.2]
    assert coefficients_of(p.log(), q.log(), torch.square) == pytest.approx(expected)
    # exact drops the tail's part and changes the answer
    assert coefficients_of(p.log(), q.log(), torch.square, exact=True) == pytest.approx([0.32, 0.3 * (2 / 3) ** 2])
    # a floor of 0.3 raises the sampler's tail: alpha = 0.3 / 0.4; one of 0.5 raises both: alpha = 1
    expected = [0.5 - 0.75 * 0.4, 0.3 - 0.75 * 0.2]
    assert coefficients_of(p.log(), q.log(), torch.ones_like, tail_floor=0.3) == pytest.approx(expected)
    assert coefficients_of(p.log(), q.log(), torch.ones_like, tail_floor=0.5) == pytest.approx([0.1, 0.1])


def test_head_masses():
    # The sampler's first; a filled-up place counts for neither.
    head, rollout = float64([[0.4, 0.2, 0.3]]).log(), float64([[0.5, 0.3, 0.0]]).log()
    _, rollout_mass, trainer_mass = score_centering_term(head, rollout, WEIGHTS["tis"])
    assert rollout_mass.tolist() == pytest.approx([0.8])
    assert trainer_mass.tolist() == pytest.approx([0.6])


@pytest.mark.parametrize(
    ("q_tail", "p_tail", "alpha"), [(1e-9, 1e-9, 1.0), (1e-9, 0.1, 1e-5), (0.1, 1e-9, 1e5), (0.0, 0.0, 1.0)]
)
def test_floor_of_the_tails(q_tail, p_tail, alpha):  # (7.7)
    got = coefficients_of(float64([1 - p_tail]).log(), float64([1 - q_tail]).log(), torch.ones_like)
    assert got == pytest.approx([1 - q_tail - alpha * (1 - p_tail)], rel=1e-9, abs=1e-12)


def test_extreme_ratios_are_clamped():  # (5.6)
    seen = []

    def weight_fn(ratio):
        seen.append(ratio.tolist())
        return ratio

    head, rollout = float64([[-1.0, -800.0]]), float64([[-800.0, -1.0]])
    score_centering_term(head, rollout, weight_fn, exact=True)
    assert seen == [[pytest.approx([math.exp(20), math.exp(-20)])]]
    # The ratio of the tails too, if the floor lets it come so far.
    score_centering_term(float64([[-1.0]]), float64([[0.0]]), weight_fn, tail_floor=1e-15)
    assert seen[-1] == [pytest.approx(math.exp(20))]


GARBAGE = [math.nan, math.inf, -math.inf, 1e30]


@pytest.mark.parametrize("garbage", [*GARBAGE, -0.5])
@pytest.mark.parametrize("exact", [True, False])
def test_places_that_are_filled_up(garbage, exact):
    head = float64([[math.log(0.4), garbage, math.log(0.2)], [math.log(0.4), math.log(0.2), math.log(0.1)]])
    rollout = float64([[math.log(0.5), -math.inf, math.log(0.3)], [math.log(0.5), math.log(0.3), math.log(0.1)]])
    head.requires_grad_()
    results = score_centering_term(head, rollout, WEIGHTS["wavy"], exact=exact)
    results[0].sum().backward()
    short = head.detach()[:1, [0, 2]].requires_grad_()
    expected = score_centering_term(short, rollout[:1, [0, 2]], WEIGHTS["wavy"], exact=exact)
    expected[0].sum().backward()
    for one, other in zip(results, expected, strict=True):
        assert one[0].item() == pytest.approx(other[0].item(), rel=1e-12)
    assert head.grad[0, 1].item() == 0.0
    torch.testing.assert_close(head.grad[0, [0, 2]], short.grad[0], atol=1e-14, rtol=1e-12)
    assert head.grad[1].isfinite().all()


def rows(tokens, head, seed):
    """Heads of p and q that hold most but not all of the mass, some places filled up."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, tokens, head + 3, generator=generator, dtype=torch.float64)
    trainer, rollout = torch.log_softmax(logits, -1)[..., :head]
    filled = torch.rand(tokens, head, generator=generator) < 0.2
    return trainer, rollout.masked_fill(filled, -math.inf)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(2, 6),
    st.integers(1, 5),
    seeds,
    st.sampled_from(GARBAGE),
    st.booleans(),
    st.booleans(),
    weight_names,
    st.data(),
)
def test_garbage_in_one_row_changes_no_other(tokens, head, seed, garbage, in_rollout, exact, name, data):
    trainer, rollout = rows(tokens, head, seed)
    row = data.draw(st.integers(0, tokens - 1))
    clean = trainer.clone().requires_grad_()
    expected = score_centering_term(clean, rollout, WEIGHTS[name], exact=exact)
    expected[0].sum().backward()
    column = data.draw(st.integers(0, head - 1))
    (rollout if in_rollout else trainer)[row, column] = garbage
    dirty = trainer.requires_grad_()
    got = score_centering_term(dirty, rollout, WEIGHTS[name], exact=exact)
    got[0].sum().backward()
    others = torch.arange(tokens) != row
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one[others], other[others])
    assert torch.equal(dirty.grad[others], clean.grad[others])


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("in_rollout", [True, False])
def test_garbage_is_never_repaired(garbage, in_rollout):
    trainer, rollout = P.log()[None].clone(), Q.log()[None].clone()
    (rollout if in_rollout else trainer)[0, 1] = garbage
    if in_rollout and garbage == -math.inf:
        return  # that is a filled-up place
    term, _, _ = score_centering_term(trainer, rollout, WEIGHTS["tis"])
    assert not math.isfinite(term.item())


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), seeds, st.booleans(), weight_names)
def test_order_and_padding_change_nothing(tokens, head, more_tokens, more_places, seed, exact, name):
    trainer, rollout = rows(tokens, head, seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(tokens + more_tokens, generator=generator)
    places = torch.randperm(head + more_places, generator=generator)
    size = (0, more_places, 0, more_tokens)
    padded = torch.nn.functional.pad(trainer, size, value=-3.0)[order][:, places].requires_grad_()
    padded_rollout = torch.nn.functional.pad(rollout, size, value=-math.inf)[order][:, places]
    trainer.requires_grad_()
    expected = score_centering_term(trainer, rollout, WEIGHTS[name], exact=exact)
    got = score_centering_term(padded, padded_rollout, WEIGHTS[name], exact=exact)
    for one, other in zip(got, expected, strict=True):
        back = one[order.argsort()]
        torch.testing.assert_close(back[:tokens], other, atol=1e-13, rtol=1e-12)
        assert back[tokens:].tolist() == [0.0] * more_tokens
    got[0].sum().backward()
    expected[0].sum().backward()
    back = padded.grad[order.argsort()][:, places.argsort()]
    torch.testing.assert_close(back[:tokens, :head], trainer.grad, atol=1e-13, rtol=1e-12)
    assert back[tokens:].abs().sum() == 0.0
    assert back[:, head:].abs().sum() == 0.0


def test_gradcheck():
    trainer, rollout = rows(4, 5, 0)
    trainer.requires_grad_()

    def term_of(head):
        # A constant weight and no tail: else the coefficients hold p, detached, which a finite difference would move.
        return score_centering_term(head, rollout, lambda ratio: torch.full_like(ratio, 0.7), exact=True)[0]

    assert torch.autograd.gradcheck(term_of, (trainer,))
    logprobs, advantages, weights, term = torch.randn(4, 6, dtype=torch.float64)
    inputs = (logprobs.requires_grad_(), term.requires_grad_())
    assert torch.autograd.gradcheck(lambda lp, t: centered_reinforce_loss(lp, advantages, weights, t), inputs)


def test_loss_by_hand():  # (7.3)
    logprobs, term = float64([-0.5, -2.0]).requires_grad_(), float64([0.25, -1.0]).requires_grad_()
    loss = centered_reinforce_loss(logprobs, float64([2.0, -1.0]), float64([3.0, 0.5]), term)
    assert loss.tolist() == [-2.0 * (3.0 * -0.5 - 0.25), 0.5 * -2.0 + 1.0]
    loss.sum().backward()
    assert logprobs.grad.tolist() == [-6.0, 0.5]
    assert term.grad.tolist() == [2.0, -1.0]


def test_without_term_and_weight_it_is_reinforce():
    logprobs, advantages = float64([-0.5, -2.0]), float64([2.0, -1.0])
    got = centered_reinforce_loss(logprobs, advantages, torch.ones(2).double(), torch.zeros(2).double())
    assert torch.equal(got, reinforce_loss(logprobs, advantages))


def test_dtypes():
    head, rollout = P.log().float()[None], Q.log().float()[None]
    for result in score_centering_term(head, rollout, WEIGHTS["tis"]):
        assert result.dtype == torch.float32
    assert score_centering_term(head.double(), rollout, WEIGHTS["tis"])[0].dtype == torch.float64


def test_no_tokens():
    term, rollout_mass, trainer_mass = score_centering_term(torch.zeros(0, 5), torch.zeros(0, 5), WEIGHTS["tis"])
    assert term.shape == rollout_mass.shape == trainer_mass.shape == (0,)


# Truncated support. Row 0 has three tokens, row 1 has one, row 2 has four; 6 is the vocabulary.
SUPPORT_IDS = torch.tensor([[4, 0, 2, 0], [3, 0, 0, 0], [0, 1, 3, 5]])
SUPPORT_MASK = torch.tensor([[True, True, True, False], [True, False, False, False], [True] * 4])
SAMPLED = torch.tensor([0, 3, 5])


def on_support(logits):
    logprobs = torch.log_softmax(logits, 1)
    return renormalize_on_support(
        logprobs.gather(1, SAMPLED[:, None])[:, 0], logprobs.gather(1, SUPPORT_IDS), SUPPORT_MASK
    )


def rollout_on_support():
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * 2
    return torch.log_softmax(logits.masked_fill(~SUPPORT_MASK, -math.inf), 1)


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_truncated_support_equals_the_dense_computation_on_it(name):  # (7.9)
    logits = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    rollout = rollout_on_support()
    logprobs, head, entropy = on_support(logits)
    sampled = SAMPLED[:, None] == SUPPORT_IDS
    rollout_sampled = rollout.masked_fill(~(sampled & SUPPORT_MASK), 0.0).sum(1)
    weights = WEIGHTS[name]((logprobs - rollout_sampled).exp())
    term, rollout_mass, trainer_mass = score_centering_term(head, rollout, WEIGHTS[name], exact=True)
    assert rollout_mass.tolist() == pytest.approx([1.0] * 3)
    assert trainer_mass.tolist() == pytest.approx([1.0] * 3)
    loss = centered_reinforce_loss(logprobs, float64([1.0, -2.0, 0.5]), weights, term)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    for row, advantage in enumerate([1.0, -2.0, 0.5]):
        ids = SUPPORT_IDS[row][SUPPORT_MASK[row]]
        small = torch.log_softmax(logits[row, ids], 0)
        action = int((ids == SAMPLED[row]).nonzero())
        assert logprobs[row].item() == pytest.approx(small[action].item(), abs=1e-12)
        assert entropy[row].item() == pytest.approx(-(small.exp() * small).sum().item(), abs=1e-12)
        q = rollout[row][SUPPORT_MASK[row]].exp()
        dense = ascent(logits[row, ids], q, action, advantage, WEIGHTS[name], exact=True)
        expected = torch.zeros(6, dtype=torch.float64).index_put((ids,), -dense)
        torch.testing.assert_close(gradient[row], expected, atol=1e-12, rtol=1e-10)


def test_renormalized_head():
    logits = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    _, head, _ = on_support(logits)
    assert (head == -math.inf).equal(~SUPPORT_MASK)
    assert head.exp().sum(1).tolist() == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_support_of_one_token_has_no_gradient(name, dtype):
    generator = torch.Generator().manual_seed(6)
    hidden = torch.randn(3, 7, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(6, 7, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.tensor([0, 3, 5])
    output = chunked_logprobs(hidden, weight, targets, head_ids=targets[:, None].repeat(1, 4), temperature=0.7)
    mask = torch.tensor([[True, False, False, False]] * 3)
    logprobs, head, entropy = renormalize_on_support(output.logprobs, output.head_logprobs, mask)
    assert logprobs.tolist() == [0.0] * 3
    assert entropy.tolist() == [0.0] * 3
    rollout = torch.zeros(3, 4, dtype=dtype).masked_fill(~mask, -math.inf)
    term, _, _ = score_centering_term(head, rollout, WEIGHTS[name], exact=True)
    weights = WEIGHTS[name](logprobs.exp())
    loss = centered_reinforce_loss(logprobs, torch.tensor([1.3, -0.7, 2.0], dtype=dtype), weights, term)
    (loss.sum() + 0.1 * entropy.sum()).backward()
    assert hidden.grad.abs().max() == 0.0
    assert weight.grad.abs().max() == 0.0


@pytest.mark.parametrize("garbage", GARBAGE)
def test_places_off_the_support_are_never_read(garbage):
    logprobs = torch.full((3,), -1.0, dtype=torch.float64)
    support = torch.log_softmax(torch.arange(12.0, dtype=torch.float64).reshape(3, 4), 1)
    clean, dirty = support.clone().requires_grad_(), support.masked_fill(~SUPPORT_MASK, garbage).requires_grad_()
    expected, got = (renormalize_on_support(logprobs, tensor, SUPPORT_MASK) for tensor in (clean, dirty))
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)
    for logprob, head, entropy in (expected, got):
        (logprob.sum() + entropy.sum() + head[SUPPORT_MASK].square().sum()).backward()
    assert torch.equal(dirty.grad, clean.grad)
    assert dirty.grad.isfinite().all()
    assert dirty.grad[~SUPPORT_MASK].tolist() == [0.0] * 4


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_garbage_in_one_support_changes_no_other(garbage):
    logprobs, support = torch.full((2,), -1.0), torch.log_softmax(torch.arange(6.0).reshape(2, 3), 1)
    mask = torch.ones(2, 3, dtype=torch.bool)
    expected = renormalize_on_support(logprobs, support, mask)
    support[0, 1] = garbage
    support.requires_grad_()
    got = renormalize_on_support(logprobs, support, mask)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one[1], other[1])
    got[0].sum().backward()
    assert support.grad[1].isfinite().all()


def test_token_without_support_stands_out_and_has_a_finite_gradient():
    support = torch.full((1, 2), -1.0, requires_grad=True)
    logprobs = torch.full((1,), -1.0)
    renormalized, head, entropy = renormalize_on_support(logprobs, support, torch.zeros(1, 2, dtype=torch.bool))
    assert renormalized.tolist() == [math.inf]
    assert head.tolist() == [[-math.inf, -math.inf]]
    assert entropy.tolist() == [0.0]
    (renormalized.sum() + entropy.sum()).backward()
    assert support.grad.tolist() == [[0.0, 0.0]]


def test_gradcheck_on_the_support():
    generator = torch.Generator().manual_seed(7)
    logprobs = torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_()
    support = torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_()

    def function(logprobs, support):
        renormalized, head, entropy = renormalize_on_support(logprobs, support, SUPPORT_MASK)
        return renormalized, head[SUPPORT_MASK], entropy

    assert torch.autograd.gradcheck(function, (logprobs, support))


def test_refusals():
    head, rollout, weight_fn = P.log()[None], Q.log()[None], WEIGHTS["none"]
    with pytest.raises(ValueError, match=r"head_logprobs must have 2 dimension\(s\); got shape \(3,\)"):
        score_centering_term(head[0], rollout, weight_fn)
    with pytest.raises(ValueError, match="rollout_head_logprobs must have 2 dimension"):
        score_centering_term(head, rollout[0], weight_fn)
    with pytest.raises(ValueError, match=r"the shape of head_logprobs: expected \(1, 3\), got \(1, 2\)"):
        score_centering_term(head, rollout[:, :2], weight_fn)
    with pytest.raises(TypeError, match=r"head_logprobs must be torch\.float32 or torch\.float64; got torch\.bfloat16"):
        score_centering_term(head.bfloat16(), rollout, weight_fn)
    with pytest.raises(TypeError, match="rollout_head_logprobs must be"):
        score_centering_term(head, rollout.half(), weight_fn)
    for floor in (0.0, 1.0, -1e-6, math.nan):
        with pytest.raises(ValueError, match=r"tail_floor must lie in \(0, 1\); got"):
            score_centering_term(head, rollout, weight_fn, tail_floor=floor)
    with pytest.raises(ValueError, match=r"weight_fn must be elementwise: expected shape \(1, 3\), got \(1,\)"):
        score_centering_term(head, rollout, lambda ratio: ratio.prod(1))
    with pytest.raises(ValueError, match=r"weight_fn must be elementwise: expected shape \(1,\), got \(\)"):
        score_centering_term(head, rollout, lambda ratio: ratio if ratio.dim() == 2 else ratio.sum())


def test_refusals_of_the_loss():
    zeros = torch.zeros(2)
    for name in ("logprobs", "advantages", "weights", "term"):
        arguments = dict.fromkeys(("logprobs", "advantages", "weights", "term"), zeros)
        with pytest.raises(TypeError, match=rf"^{name} must be torch\.float32 or torch\.float64; got torch\.int64"):
            centered_reinforce_loss(**arguments | {name: zeros.long()})
        with pytest.raises(ValueError, match=rf"^{name} must have 1 dimension\(s\); got shape \(1, 2\)"):
            centered_reinforce_loss(**arguments | {name: zeros[None]})
        if name != "logprobs":
            with pytest.raises(
                ValueError, match=rf"{name} must have the shape of logprobs: expected \(2,\), got \(1,\)"
            ):
                centered_reinforce_loss(**arguments | {name: zeros[:1]})


def test_refusals_of_the_support():
    logprobs, support = torch.zeros(3), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="logprobs must have 1 dimension"):
        renormalize_on_support(support, support, SUPPORT_MASK)
    with pytest.raises(ValueError, match=r"support_logprobs must have 2 dimension\(s\)"):
        renormalize_on_support(logprobs, logprobs, SUPPORT_MASK)
    with pytest.raises(ValueError, match=r"support_mask must have the shape of support_logprobs: expected \(3, 4\)"):
        renormalize_on_support(logprobs, support, SUPPORT_MASK[:, :3])
    with pytest.raises(ValueError, match=r"support_logprobs must have shape \(2, S\), one row for each of logprobs"):
        renormalize_on_support(logprobs[:2], support, SUPPORT_MASK)
    with pytest.raises(TypeError, match="support_mask must be torch.bool"):
        renormalize_on_support(logprobs, support, SUPPORT_MASK.long())
    with pytest.raises(TypeError, match="support_logprobs must be"):
        renormalize_on_support(logprobs, support.bfloat16(), SUPPORT_MASK)
    with pytest.raises(TypeError, match="^logprobs must be"):
        renormalize_on_support(logprobs.bfloat16(), support, SUPPORT_MASK)
