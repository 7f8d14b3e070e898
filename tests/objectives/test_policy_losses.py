"""PPO-clip and REINFORCE on the sampled tokens: MATH 3; the clip fraction counts trained tokens."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_algos.objectives import loss_weights, ppo_clip_loss, reduce_loss, reinforce_loss, sequence_clip_loss


def run(ratios, advantages, **options):
    """Loss, gradient with respect to log p, and clipped, in float64."""
    logprobs = torch.tensor(ratios, dtype=torch.float64).log() - 1.5
    logprobs.requires_grad_()
    old = torch.full_like(logprobs, -1.5, requires_grad=True)
    values = torch.tensor(advantages, dtype=torch.float64, requires_grad=True)
    loss, clipped = ppo_clip_loss(logprobs, old, values, **options)
    loss.sum().backward()
    assert old.grad is None
    assert values.grad is None
    return loss.tolist(), logprobs.grad.tolist(), clipped.tolist()


# One token for each zone: sign of the advantage x ratio below, inside, above the band [0.8, 1.2].
RATIOS = [0.5, 1.1, 1.5, 0.5, 1.1, 1.5]
ADVANTAGES = [2.0, 2.0, 2.0, -2.0, -2.0, -2.0]


def test_the_six_zones():
    loss, gradient, clipped = run(RATIOS, ADVANTAGES)
    assert loss == pytest.approx([-1.0, -2.2, -2.4, 1.6, 2.2, 3.0])
    assert gradient == pytest.approx([-1.0, -2.2, 0.0, 0.0, 2.2, 3.0])
    assert clipped == [False, False, True, True, False, False]


def test_clip_low_moves_the_lower_bound_only():
    loss, gradient, clipped = run(RATIOS, ADVANTAGES, clip_low=0.6)
    assert loss == pytest.approx([-1.0, -2.2, -2.4, 1.0, 2.2, 3.0])
    assert gradient == pytest.approx([-1.0, -2.2, 0.0, 1.0, 2.2, 3.0])
    assert clipped == [False, False, True, False, False, False]


def test_clip_high_moves_the_upper_bound_only():
    loss, gradient, clipped = run(RATIOS, ADVANTAGES, clip_high=0.05)
    assert loss == pytest.approx([-1.0, -2.1, -2.1, 1.6, 2.2, 3.0])
    assert gradient == pytest.approx([-1.0, 0.0, 0.0, 0.0, 2.2, 3.0])
    assert clipped == [False, True, True, True, False, False]


def test_dual_clip_stops_only_negative_advantages_with_large_ratios():
    loss, gradient, clipped = run([2.5, 4.0, 4.0, 0.5], [-1.0, -1.0, 1.0, -1.0], dual_clip=3.0)
    assert loss == pytest.approx([2.5, 3.0, -1.2, 0.8])
    assert gradient == pytest.approx([2.5, 0.0, 0.0, 0.0])
    assert clipped == [False, True, True, True]
    loss, gradient, clipped = run([4.0], [-1.0])
    assert (loss, gradient, clipped) == ([pytest.approx(4.0)], [pytest.approx(4.0)], [False])


def test_at_equal_policies_the_gradient_is_minus_the_advantage():  # (3.3)
    _, gradient, clipped = run([1.0, 1.0], [0.7, -0.3], clip_low=0.0, clip_high=0.0)
    assert gradient == pytest.approx([-0.7, 0.3])
    assert clipped == [False, False]


def test_zero_advantage_is_never_clipped():
    assert run([0.1, 9.0], [0.0, 0.0], dual_clip=2.0)[2] == [False, False]


@settings(deadline=None, max_examples=200)
@given(
    st.floats(-3, 3),
    st.floats(-3, 3),
    st.floats(0, 1),
    st.floats(0, 2),
    st.none() | st.floats(1.01, 5),
)
def test_equals_the_min_and_max_of_the_papers(log_ratio, advantage, low, high, dual):
    ratio = math.exp(log_ratio)
    surrogate = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if dual is not None and advantage < 0:
        surrogate = max(surrogate, dual * advantage)
    loss, gradient, clipped = run([ratio], [advantage], clip_low=low, clip_high=high, dual_clip=dual)
    assert loss[0] == pytest.approx(-surrogate, rel=1e-9, abs=1e-12)
    if clipped[0]:
        assert gradient[0] == 0.0
    else:
        assert gradient[0] == pytest.approx(-ratio * advantage, rel=1e-9, abs=1e-12)


def test_gradcheck_away_from_the_corners():
    logprobs = torch.tensor(RATIOS, dtype=torch.float64).log().requires_grad_()
    old, values = torch.zeros(6).double(), torch.tensor(ADVANTAGES).double()
    assert torch.autograd.gradcheck(lambda lp: ppo_clip_loss(lp, old, values, dual_clip=1.3)[0], (logprobs,))


def test_extreme_ratios_stay_finite():  # (5.6)
    logprobs = torch.tensor([0.0, -800.0], requires_grad=True)
    loss, _ = ppo_clip_loss(logprobs, torch.tensor([-800.0, 0.0]), torch.tensor([-1.0, 1.0]))
    assert loss.tolist() == pytest.approx([math.exp(20), -math.exp(-20)], rel=1e-5)
    loss.sum().backward()
    assert logprobs.grad.tolist() == [0.0, 0.0]


def test_clip_fraction_counts_trained_tokens_whose_gradient_is_gone():
    ratios = torch.tensor([1.5, 0.5, 1.0, 5.0])
    mask = torch.tensor([True, True, True, False])
    _, clipped = ppo_clip_loss(ratios.log(), torch.zeros(4), torch.tensor([1.0, 1.0, -1.0, 1.0]))
    assert clipped.tolist() == [True, False, False, True]
    assert (clipped[mask].sum() / mask.sum()).item() == pytest.approx(1 / 3)


def test_clip_fraction_over_learners_is_a_ratio_of_sums():
    learners = [([1.5, 1.0, 1.0], [1.0, 1.0, 1.0]), ([0.5], [-1.0])]
    counts = []
    for ratios, values in learners:
        _, clipped = ppo_clip_loss(torch.tensor(ratios).log(), torch.zeros(len(ratios)), torch.tensor(values))
        counts.append((int(clipped.sum()), clipped.numel()))
    assert counts == [(1, 3), (1, 1)]
    assert sum(c for c, _ in counts) / sum(n for _, n in counts) == 0.5


def test_reinforce_value_and_gradient():
    logprobs = torch.tensor([-0.5, -2.0], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    loss = reinforce_loss(logprobs, values)
    assert loss.tolist() == [1.0, -2.0]
    loss.sum().backward()
    assert logprobs.grad.tolist() == [-2.0, 1.0]
    assert values.grad is None
    assert torch.autograd.gradcheck(lambda lp: reinforce_loss(lp, values.detach()), (logprobs,))


def test_both_losses_have_the_same_gradient_at_equal_policies():
    values = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first = torch.linspace(-3, -0.1, 5, dtype=torch.float64).requires_grad_()
    second = first.detach().clone().requires_grad_()
    ppo_clip_loss(first, first.detach(), values)[0].sum().backward()
    reinforce_loss(second, values).sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": -0.1}, r"clip_low must lie in \[0, 1\]; got -0.1"),
        ({"clip_low": 1.1}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"clip_high": math.inf}, "clip_high"),
        ({"clip_high": math.nan}, "clip_high"),
        ({"dual_clip": 1.0}, "dual_clip must be finite and greater than 1; got 1.0"),
        ({"dual_clip": math.inf}, "dual_clip"),
    ],
)
def test_bounds_are_checked(options, message):
    zeros = torch.zeros(2)
    with pytest.raises(ValueError, match=message):
        ppo_clip_loss(zeros, zeros, zeros, **options)


def test_inputs_are_checked():
    zeros = torch.zeros(2)
    with pytest.raises(ValueError, match=r"advantages must have the shape of logprobs: expected \(2,\), got \(1,\)"):
        ppo_clip_loss(zeros, zeros, zeros[:1])
    with pytest.raises(ValueError, match="old_logprobs must have 1 dimension"):
        ppo_clip_loss(zeros, zeros[None], zeros)
    with pytest.raises(TypeError, match=r"logprobs must be torch\.float32 or torch\.float64; got torch\.bfloat16"):
        ppo_clip_loss(zeros.bfloat16(), zeros, zeros)
    with pytest.raises(ValueError, match="advantages"):
        reinforce_loss(zeros, zeros[:1])
    with pytest.raises(TypeError, match="advantages"):
        reinforce_loss(zeros, zeros.long())


def test_a_ratio_at_the_dual_clip_itself_is_still_followed():
    ratio = torch.tensor(1.0, dtype=torch.float64).exp().item()
    logprobs = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    zero, minus_one = torch.zeros(1, dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    loss, clipped = ppo_clip_loss(logprobs, zero, minus_one, dual_clip=ratio)
    loss.sum().backward()
    assert not clipped.item()
    assert logprobs.grad.item() == ratio


# ---- one ratio per response (3.5 to 3.8) ---------------------------------------------------------------------------


def run_sequences(log_ratios, advantages, samples, mask=None, **options):
    """Loss, gradient with respect to log p, and clipped, in float64."""
    logprobs = (torch.tensor(log_ratios, dtype=torch.float64) - 1.5).requires_grad_()
    old = torch.full_like(logprobs, -1.5, requires_grad=True)
    values = torch.tensor(advantages, dtype=torch.float64, requires_grad=True)
    trained = torch.ones(len(log_ratios), dtype=torch.bool) if mask is None else torch.tensor(mask)
    loss, clipped = sequence_clip_loss(logprobs, old, values, torch.tensor(samples), trained, **options)
    loss.sum().backward()
    assert old.grad is None
    assert values.grad is None
    return loss.tolist(), logprobs.grad.tolist(), clipped.tolist()


def slow_sequence_loss(logprobs, old, advantages, samples, mask, low, high):
    """(3.6) averaged over responses, one response at a time; autograd makes the gradient (3.7)."""
    total, responses = torch.zeros((), dtype=torch.float64), sorted(set(samples[mask].tolist()))
    for sample in responses:
        mine = (samples == sample) & mask
        ratio = (logprobs[mine] - old[mine]).mean().exp()
        advantage = advantages[mine][0]
        total = total - torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return total / len(responses)


def test_the_worked_case_of_a_response():
    s = math.exp(0.05)
    loss, gradient, clipped = run_sequences([0.2, -0.1], [1.0, 1.0], [7, 7])
    assert loss == pytest.approx([-1.0004, -1.0004]) and gradient == [0, 0] and clipped == [True, True]
    loss, gradient, clipped = run_sequences([0.2, -0.1], [-1.0, -1.0], [7, 7])
    assert loss == pytest.approx([s, s]) and gradient == pytest.approx([s, s]) and clipped == [False, False]
    # Far below the band a negative advantage is clipped, a positive one followed.
    loss, gradient, clipped = run_sequences([-0.2, -0.4, -0.3], [-1.0, -1.0, 2.0], [1, 1, 2])
    assert loss == pytest.approx([0.9997, 0.9997, -2 * math.exp(-0.3)])
    assert gradient == pytest.approx([0, 0, -2 * math.exp(-0.3)]) and clipped == [True, True, False]


def test_a_token_beyond_the_band_is_followed_if_its_response_is_within():
    loss, gradient, clipped = run_sequences([3.0, -3.0], [1.0, 1.0], [0, 0])
    assert loss == [-1, -1] and gradient == [-1, -1] and clipped == [False, False]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_equals_the_slow_reference(data):
    """Value and gradient with the reduction that GSPO has, in any order, with untrained tokens."""
    size = data.draw(st.integers(1, 9))
    numbers = st.lists(st.floats(-0.3, 0.3), min_size=size, max_size=size)
    samples = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    mask[0] = True
    advantages = torch.tensor([1.5, -1.0, 0.5, -0.2], dtype=torch.float64)[samples]
    old = torch.tensor(data.draw(numbers), dtype=torch.float64) - 2
    first = (torch.tensor(data.draw(numbers), dtype=torch.float64) - 2).requires_grad_()
    second = first.detach().clone().requires_grad_()
    loss, _ = sequence_clip_loss(first, old, advantages, samples, mask, clip_low=0.05, clip_high=0.07)
    weights = loss_weights(mask, samples, 4, mode="seq-mean-token-mean").double()
    value = reduce_loss(loss, weights)
    expected = slow_sequence_loss(second, old, advantages, samples, mask, 0.05, 0.07)
    assert value.item() == pytest.approx(expected.item(), abs=1e-6)
    value.backward(), expected.backward()
    assert torch.allclose(first.grad, second.grad, atol=1e-6)
    assert (first.grad[~mask] == 0).all()


def test_the_sequence_gradient_agrees_with_finite_differences_of_the_value():
    """(3.8) has the value and the gradient of (3.6): the mean over a response is what is differentiated."""
    samples, mask = torch.tensor([4, 9, 4, 9, 4]), torch.tensor([True, True, True, False, True])
    old = torch.full((5,), -1.0, dtype=torch.float64)
    advantages = torch.tensor([1.0, -2.0, 1.0, -2.0, 1.0], dtype=torch.float64)
    logprobs = torch.tensor([-1.001, -1.3, -0.9, -1.0, -1.1], dtype=torch.float64, requires_grad=True)
    counts = torch.tensor([3.0, 1.0, 3.0, 1.0, 3.0], dtype=torch.float64)

    def value(at):
        return (sequence_clip_loss(at, old, advantages, samples, mask, clip_low=0.4, clip_high=0.4)[0] / counts).sum()

    (gradient,) = torch.autograd.grad(value(logprobs), logprobs)
    for place in range(5):
        step = torch.zeros(5, dtype=torch.float64)
        step[place] = 1e-6
        difference = (value(logprobs.detach() + step) - value(logprobs.detach() - step)) / 2e-6
        assert gradient[place].item() == pytest.approx(difference.item(), abs=1e-8)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_untrained_tokens_of_a_response_are_never_read(garbage):
    clean = run_sequences([0.1, 0.0, 0.2], [1.0, 1.0, 1.0], [0, 0, 0], [True, False, True])
    dirty = run_sequences([0.1, garbage, 0.2], [1.0, garbage, 1.0], [0, 0, 0], [True, False, True])
    assert clean == dirty and clean[0][1] == clean[1][1] == 0


def test_a_response_beyond_the_clamp_stays_finite_and_is_not_followed():  # (5.6)
    loss, gradient, clipped = run_sequences([20.0], [-1.0], [0])
    assert loss == gradient == pytest.approx([math.exp(20)]) and clipped == [False]
    loss, gradient, clipped = run_sequences([-500.0, 300.0], [1.0, -1.0], [0, 1])
    assert loss == pytest.approx([-math.exp(-20), math.exp(20)]) and gradient == [0, 0] and clipped == [False, False]


def test_inputs_of_the_sequence_loss_are_checked():
    zeros, samples, mask = torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="clip_low must lie in"):
        sequence_clip_loss(zeros, zeros, zeros, samples, mask, clip_low=1.5)
    with pytest.raises(TypeError, match="sample_ids"):
        sequence_clip_loss(zeros, zeros, zeros, zeros, mask)
    with pytest.raises(ValueError, match="loss_mask must have the shape of logprobs"):
        sequence_clip_loss(zeros, zeros, zeros, samples, mask[:1])
    empty, _ = sequence_clip_loss(zeros, zeros, zeros, samples, ~mask)
    assert empty.tolist() == [0, 0]
