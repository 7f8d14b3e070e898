"""Correctors together with the losses: coefficients, loss and gradient, also of overflowing ratios."""

import math

import pytest
import torch

from rlhf_algos.corrections import TIS, IcePop, ImportanceSampling, NoCorrection, SequenceMask, SequenceTIS
from rlhf_algos.objectives import loss_weights, ppo_clip_loss, reduce_loss, reinforce_loss


def corrected_step(corrector, trainer, sampler, advantages, mask=None, samples=None, dtype=torch.float32):
    """Coefficients, loss and gradient of the token mean of `w * (-A log p)`; log-probabilities held in `dtype`."""
    logprobs = torch.tensor(trainer, dtype=dtype).requires_grad_()
    rollout = torch.tensor(sampler, dtype=dtype)
    size = len(trainer)
    mask = torch.ones(size, dtype=torch.bool) if mask is None else torch.tensor(mask)
    samples = torch.zeros(size, dtype=torch.int64) if samples is None else torch.tensor(samples)
    precise = logprobs.to(torch.promote_types(dtype, torch.float32))
    weights, _ = corrector.correct(precise - rollout.to(precise.dtype), samples, mask)
    values = torch.tensor(advantages, dtype=precise.dtype)
    per_token = weights * reinforce_loss(torch.where(mask, precise, torch.zeros_like(precise)), values)
    loss = reduce_loss(per_token, loss_weights(mask, samples, int(samples.max()) + 1, mode="token-mean"))
    loss.backward()
    return weights.tolist(), loss.item(), logprobs.grad.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
class TestOverflow:
    def test_icepop_drops_the_token(self, dtype):
        weights, loss, gradient = corrected_step(
            IcePop(0.5, 5.0), [-1.0, -1.0], [-1001.0, -1.0], [1.0, 1.0], dtype=dtype
        )
        assert weights == [0.0, 1.0]
        assert loss == 0.5
        assert gradient == [0.0, -0.5]

    def test_tis_caps_the_token(self, dtype):
        weights, loss, gradient = corrected_step(TIS(high=5.0), [-1.0, -1.0], [-1001.0, -1.0], [1.0, 1.0], dtype=dtype)
        assert weights == [5.0, 1.0]
        assert loss == 3.0
        assert gradient == [-2.5, -0.5]

    @pytest.mark.parametrize("corrector", [IcePop(0.5, 5.0), TIS(high=5.0)], ids=repr)
    def test_sampler_far_above_the_trainer(self, corrector, dtype):
        weights, loss, gradient = corrected_step(corrector, [-1001.0, -1.0], [-1.0, -1.0], [1.0, 1.0], dtype=dtype)
        # Exactly 0 for IcePop; TIS has the e^-20 of the clamp (5.6).
        assert weights == pytest.approx([0.0, 1.0], abs=0.0 if isinstance(corrector, IcePop) else 2.1e-9)
        assert loss == pytest.approx(0.5, abs=2e-6)
        assert gradient == pytest.approx([0.0, -0.5], abs=2e-9)

    def test_a_response_with_such_a_token(self, dtype):
        trainer, sampler = [-1.0, -1.0, -1.0], [-1001.0, -1.0, -1.0]
        for corrector in (SequenceMask(high=5.0), SequenceMask(high=5.0, aggregate="product")):
            step = corrected_step(corrector, trainer, sampler, [1.0] * 3, samples=[0, 0, 1], dtype=dtype)
            assert step[0] == [0.0, 0.0, 1.0]
            assert step[1] == pytest.approx(1 / 3, rel=1e-2)
            assert step[2] == pytest.approx([0.0, 0.0, -1 / 3], rel=1e-2)
        step = corrected_step(SequenceTIS(high=5.0), trainer, sampler, [1.0] * 3, samples=[0, 0, 1], dtype=dtype)
        assert step[0] == [5.0, 5.0, 1.0]


def test_half_precision_itself_is_refused():  # log-probabilities held in bf16 are upcast first, as above
    with pytest.raises(TypeError, match=r"log_ratio must be torch\.float32 or torch\.float64; got torch\.bfloat16"):
        IcePop().correct(torch.zeros(1).bfloat16(), torch.zeros(1, dtype=torch.int64), torch.tensor([True]))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_garbage_at_untrained_tokens_reaches_neither_loss_nor_gradient(garbage):
    weights, loss, gradient = corrected_step(TIS(), [-1.0, garbage], [-1.0, garbage], [1.0, 1.0], mask=[True, False])
    assert weights == [1.0, 1.0]
    assert loss == 1.0
    assert gradient == [-1.0, 0.0]


@pytest.mark.parametrize("corrector", [ImportanceSampling(), TIS(), IcePop(), SequenceTIS(), SequenceMask()], ids=repr)
def test_the_weight_carries_no_gradient(corrector):
    logits = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)[:1]
    rollout = torch.tensor([0.5], dtype=torch.float64).log()
    one = torch.ones(1, dtype=torch.float64)
    weights, ratios = corrector.correct(logprobs - rollout, torch.tensor([0]), torch.tensor([True]))
    assert weights.item() == pytest.approx(1.462117, abs=1e-6)
    (gradient,) = torch.autograd.grad((weights * reinforce_loss(logprobs, one)).sum(), logits, retain_graph=True)
    assert gradient.tolist() == pytest.approx([-0.393224, 0.393224], abs=1e-6)
    assert not ratios.requires_grad

    attached = (logprobs - rollout).exp()
    (gradient,) = torch.autograd.grad((attached * reinforce_loss(logprobs, one)).sum(), logits)
    assert gradient.tolist() == pytest.approx([-0.270042, 0.270042], abs=1e-6)  # what must not happen


def test_weight_itself_is_detached():  # as score centering calls it
    logits = torch.tensor([1.0, 0.0], requires_grad=True)
    for corrector in (NoCorrection(), ImportanceSampling(), TIS(), IcePop()):
        assert not corrector.weight((logits.log_softmax(-1) - math.log(0.5)).exp()).requires_grad


def test_advantages_and_weights_follow_the_response():  # as many responses as tokens each
    # Two responses of two tokens; the trap broadcasts [2] against [2, 2] along the wrong axis.
    samples = torch.tensor([0, 0, 1, 1])
    advantages = torch.tensor([1.0, -1.0])[samples]
    assert advantages.view(2, 2).tolist() == [[1.0, 1.0], [-1.0, -1.0]]
    log_ratio = torch.tensor([0.1, 0.3, -0.4, -0.2])
    weights, _ = SequenceTIS().correct(log_ratio, samples, torch.ones(4, dtype=torch.bool))
    assert weights.tolist() == pytest.approx([math.exp(0.2)] * 2 + [math.exp(-0.3)] * 2)
    loss = weights * reinforce_loss(torch.full((4,), -1.0), advantages)
    assert loss.tolist() == pytest.approx([math.exp(0.2)] * 2 + [-math.exp(-0.3)] * 2)
    with pytest.raises(ValueError, match=r"log_ratio must have 1 dimension\(s\); got shape \(2, 2\)"):
        SequenceTIS().correct(log_ratio.view(2, 2), samples, torch.ones(4, dtype=torch.bool))


def test_with_ppo_the_ratio_is_the_old_policys():  # (5.1), (5.2)
    logprobs = torch.tensor([math.log(0.55)], dtype=torch.float64, requires_grad=True)
    old, rollout = torch.tensor([0.5], dtype=torch.float64).log(), torch.tensor([0.125], dtype=torch.float64).log()
    weights, ratios = TIS().correct(old - rollout, torch.tensor([0]), torch.tensor([True]))
    assert ratios.item() == pytest.approx(4.0)
    loss = weights * ppo_clip_loss(logprobs, old, torch.ones(1, dtype=torch.float64))[0]
    loss.sum().backward()
    assert loss.item() == pytest.approx(2.0 * -1.1)
    assert logprobs.grad.item() == pytest.approx(2.0 * -1.1)


def test_dropped_tokens_stay_in_the_denominator():  # (4.3)
    _, loss, _ = corrected_step(IcePop(), [-1.0] * 4, [-1.0, -3.0, -1.0, -1.0], [1.0] * 4)
    assert loss == 0.75
