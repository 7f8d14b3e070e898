"""RLOO's and GSPO's gradients through DeepSpeed, packing and two ranks, against a plain reference."""

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_algos.driver.calls import on_learners
from tests.learner.conftest import make_batch, make_config
from tests.learner.reference import largest_relative_error
from tests.learner.test_corrections_and_centering import UNEQUAL, rows_of, step, with_sampler


@pytest.fixture
def learners_of(learner_pool, peaked_models):
    """Learners of an algorithm with learning rate 0."""

    def build(algorithm, **options):
        return learner_pool(make_config(peaked_models["untied"], algorithm=algorithm, **{"lr": 0.0, **options}))

    return build


def reference_gradient(path, batch, loss_of_response):
    """Gradient of the sum of `loss_of_response(log p, log q, advantage, trained tokens)` over responses."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    total = torch.zeros(())
    for sample, (logits, where) in enumerate(rows_of(batch, path, model)):
        mask = torch.from_numpy(batch.loss_mask[where].copy())
        if mask.any():
            ids = torch.from_numpy(batch.response_ids[where])
            logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0][mask]
            rollout = torch.from_numpy(batch.rollout_logprobs[where].copy())[mask]
            total = total + loss_of_response(logprobs, rollout, float(batch.advantages[sample]))
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_rloo_is_weighted_reinforce(learners_of, peaked_models):
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path)
    group = learners_of("rloo", corrector="tis", num_learners=2, token_budget=25, zero_stage=3)
    metrics, gradient = step(group, batch)
    trained = int(batch.loss_mask.sum())

    def loss(logprobs, rollout, advantage):
        weights = (logprobs.detach() - rollout).exp().clamp(0, 2)
        return -(weights * advantage * logprobs).sum() / trained

    assert largest_relative_error(gradient, reference_gradient(path, batch, loss)) < 2e-5
    assert 0 < metrics["tis_clipfrac"] < 1 and "pg_clipfrac" not in metrics


@pytest.mark.parametrize("corrector", ["none", "tis", {"type": "sequence_tis", "high": 1.1}])
def test_gspo_before_the_first_step_weighs_each_response_alike(learners_of, peaked_models, corrector):
    """At p = p0 the ratio is 1 and nothing is clipped: -A/n of every token, averaged over responses."""
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path, noise=0.2)
    metrics, gradient = step(learners_of("gspo", corrector=corrector, num_learners=2, token_budget=25), batch)
    responses = len(set(batch.token_sample_index[batch.loss_mask].tolist()))

    def loss(logprobs, rollout, advantage):
        ratios = logprobs.detach() - rollout
        weights = {"none": torch.ones_like(ratios), "tis": ratios.exp().clamp(0, 2)}.get(
            str(corrector), ratios.mean().exp().clamp(0, 1.1)
        )
        return -(weights * advantage * logprobs).mean() / responses

    assert largest_relative_error(gradient, reference_gradient(path, batch, loss)) < 2e-5
    assert metrics["pg_clipfrac"] == 0.0


@pytest.mark.parametrize("num_learners", [1, 2])
def test_gspo_follows_or_clips_whole_responses_in_later_steps(learners_of, peaked_models, num_learners):
    """The second step's ratios are against the policy before the first, of whole responses, however they are packed."""
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path, noise=0.2)
    group = learners_of("gspo", num_learners=num_learners, token_budget=40, num_epochs=2, lr=1e-3)
    before = on_learners(group, lambda learner: learner.old_logprobs_of(batch))[0]
    metrics = on_learners(group, lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0))[0]
    gradients = on_learners(group, lambda learner: learner.gradients)[0]
    assert metrics["num_optimizer_steps"] == 2
    # The learner's weights after the first step are not kept: take the same step here, with AdamW.
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[0][name].clone()
    optimizer.step()
    total, clipped = torch.zeros(()), 0
    responses = len(set(batch.token_sample_index[batch.loss_mask].tolist()))
    model.zero_grad()
    for sample, (logits, where) in enumerate(rows_of(batch, path, model)):
        mask = torch.from_numpy(batch.loss_mask[where].copy())
        if not mask.any():
            continue
        ids = torch.from_numpy(batch.response_ids[where])
        logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        ratio = (logprobs - before[where])[mask].mean().exp()
        advantage = float(batch.advantages[sample])
        bounded = ratio.clamp(1 - 3e-4, 1 + 4e-4)
        total = total - torch.minimum(ratio * advantage, bounded * advantage) / responses
        is_clipped = bool(bounded.detach() * advantage < ratio.detach() * advantage)
        clipped += is_clipped
    total.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    # Nothing is clipped in the first step; the metric is over the responses of both.
    assert metrics["pg_clipfrac"] == pytest.approx(clipped / (2 * responses)) and clipped > 0
    if clipped < responses:
        assert largest_relative_error(gradients[1], expected) < 1e-3


def test_a_metric_and_a_head_reach_only_the_loss_that_asks(learners_of):
    """A recorded head is left alone by a loss that does not need it."""
    batch = make_batch([4, 3])
    with_head = dataclasses.replace(
        batch,
        head_ids=np.tile(np.arange(10, 14, dtype=np.int32), (7, 1)),
        head_logprobs=np.full((7, 4), np.log(0.2), np.float32),
    )
    metrics, _ = step(learners_of("rloo"), batch)
    assert step(learners_of("rloo"), with_head)[0] == metrics
