"""The learners' corrected and centered losses against a plain reference, through DeepSpeed, packing and two ranks."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_algos.driver.calls import on_learners
from tests.learner.conftest import make_batch, make_config
from tests.learner.reference import largest_relative_error

UNEQUAL = [30, 1, 7, 0, 12, 3, 25, 2]
VOCABULARY = 263

WEIGHTS = {
    "none": torch.ones_like,
    "is": lambda rho: rho,
    "tis": lambda rho: rho.clamp(0.0, 2.0),
    "icepop": lambda rho: torch.where((rho >= 0.5) & (rho <= 2.0), rho, torch.zeros_like(rho)),
}


def with_sampler(batch, path, *, head=0, support=0, noise=0.5, seed=1):
    """The batch as a sampler would record it whose logits differ from the model's by normal noise.

    The tokens stay; `support` keeps so many tokens per position, the given one among them.
    """
    rng = np.random.default_rng(seed)
    log_q = torch.cat([logits for logits, _ in rows_of(batch, path)]).detach().numpy().astype(np.float64)
    log_q = log_q + rng.normal(0, noise, log_q.shape)
    tokens = np.arange(len(log_q))
    if support:
        # The token itself, and the most probable others; a different number at each position.
        order = np.argsort(-log_q, axis=1)
        keep = np.zeros(log_q.shape, bool)
        for row in tokens:
            keep[row, order[row, : 1 + row % support]] = True
        keep[tokens, batch.response_ids] = True
        log_q[~keep] = -np.inf
    log_q -= np.log(np.exp(log_q - log_q.max(1, keepdims=True)).sum(1, keepdims=True)) + log_q.max(1, keepdims=True)
    fields = {"rollout_logprobs": log_q[tokens, batch.response_ids].astype(np.float32)}
    if head:
        ids = np.argsort(-log_q, axis=1)[:, :head]
        fields["head_ids"] = ids.astype(np.int32)
        fields["head_logprobs"] = np.take_along_axis(log_q, ids, 1).astype(np.float32)
    if support:
        fields["support_lengths"] = keep.sum(1)
        fields["support_ids"] = np.concatenate([np.flatnonzero(row) for row in keep]).astype(np.int32)
        fields["support_logprobs"] = np.concatenate([q[k] for q, k in zip(log_q, keep, strict=True)]).astype(np.float32)
    return dataclasses.replace(batch, **fields)


def rows_of(batch, path, model=None):
    """For each sample the full logits that predict its response, and where its tokens stand in the batch."""
    model = model or AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    p = t = 0
    for n, m in zip(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), strict=True):
        ids = torch.from_numpy(np.concatenate([batch.prompt_ids[p : p + n], batch.response_ids[t : t + m]]))
        yield model(ids[None]).logits[0, n - 1 : n + m - 1], slice(t, t + m)
        p, t = p + n, t + m


def dense_reference(path, batch, weight, *, centered, tail_floor=1e-6):
    """Gradient of MATH 7.3 with the sampler's distribution written out over the whole vocabulary."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    total, trained = torch.zeros((), dtype=torch.float64), int(batch.loss_mask.sum())
    ends = np.cumsum(batch.support_lengths) if batch.support_lengths is not None else None
    for sample, (logits, where) in enumerate(rows_of(batch, path, model)):
        for offset, row in enumerate(logits.double()):
            t = where.start + offset
            if not batch.loss_mask[t]:
                continue
            log_p = row.log_softmax(-1)
            if ends is not None:
                support = slice(ends[t] - batch.support_lengths[t], ends[t])
                ids = torch.from_numpy(batch.support_ids[support].astype(np.int64))
                log_p = log_p.clone().fill_(-torch.inf).index_put((ids,), row[ids].log_softmax(-1))
                q = torch.zeros_like(row).index_put(
                    (ids,), torch.from_numpy(batch.support_logprobs[support]).double().exp()
                )
            elif batch.head_ids is not None:
                ids = torch.from_numpy(batch.head_ids[t].astype(np.int64))
                head_q = torch.from_numpy(batch.head_logprobs[t]).double().exp()
                p = log_p.detach().exp()
                if len(ids) < len(row):
                    alpha = (1 - head_q.sum()).clamp(min=tail_floor) / (1 - p[ids].sum()).clamp(min=tail_floor)
                    q = (alpha * p).index_put((ids,), head_q)
                else:
                    q = torch.zeros_like(p).index_put((ids,), head_q)
            token = int(batch.response_ids[t])
            w = weight((log_p[token].detach() - float(batch.rollout_logprobs[t])).exp())
            inside = w * log_p[token]
            if centered:
                here = q > 0
                coefficients = q[here] * weight(log_p.detach().exp()[here] / q[here])
                inside = inside - (coefficients * log_p[here]).sum()
            total = total - float(batch.advantages[sample]) * inside
    (total / trained).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def step(group, batch):
    metrics = on_learners(group, lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0))
    return metrics[0], on_learners(group, lambda learner: learner.gradients)[0][0]


@pytest.fixture
def centered_learners(learner_pool, peaked_models):
    """ReinforceSC learners with learning rate 0."""

    def build(**options):
        sampling = {name: options.pop(name) for name in ("top_k",) if name in options}
        config = make_config(peaked_models["untied"], algorithm="reinforce_sc", lr=0.0, **options)
        return learner_pool(config.sampling(**sampling))

    return build


@pytest.mark.parametrize("corrector", WEIGHTS)
@pytest.mark.parametrize("head", [8, VOCABULARY])
def test_centered_gradient_equals_the_dense_one(centered_learners, peaked_models, corrector, head):
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path, head=head)
    metrics, gradient = step(centered_learners(corrector=corrector, head_top_k=head), batch)
    expected = dense_reference(path, batch, WEIGHTS[corrector], centered=True)
    assert largest_relative_error(gradient, expected) < 2e-5
    heads = np.exp(batch.head_logprobs.astype(np.float64)).sum(1)[batch.loss_mask]
    assert metrics["rollout_head_mass"] == pytest.approx(heads.mean(), abs=1e-5)
    assert metrics["sc_term_abs"] > 0


def test_two_ranks_and_zero_3_give_the_same_centered_gradient(centered_learners, peaked_models):
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path, head=32)
    group = centered_learners(corrector="tis", head_top_k=32, num_learners=2, zero_stage=3, token_budget=25)
    _, gradient = step(group, batch)
    assert largest_relative_error(gradient, dense_reference(path, batch, WEIGHTS["tis"], centered=True)) < 2e-5


@pytest.mark.parametrize("corrector", ["none", "tis"])
def test_truncated_support_is_exact_on_the_support(centered_learners, peaked_models, corrector):
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path, support=6)
    _, gradient = step(centered_learners(corrector=corrector, top_k=6), batch)
    expected = dense_reference(path, batch, WEIGHTS[corrector], centered=True)
    assert largest_relative_error(gradient, expected) < 2e-5


@pytest.mark.parametrize("corrector", ["none", "is", "icepop"])
def test_without_centering_it_is_weighted_reinforce(centered_learners, peaked_models, corrector):
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path)
    metrics, gradient = step(centered_learners(corrector=corrector, score_centering=False), batch)
    assert largest_relative_error(gradient, dense_reference(path, batch, WEIGHTS[corrector], centered=False)) < 2e-5
    assert "sc_term_abs" not in metrics


@pytest.mark.parametrize("corrector", ["none", "tis", "icepop"])
def test_the_clipped_surrogate_gets_the_same_weights(learners, peaked_models, corrector):
    """At p = p0 the surrogate's gradient is -A s (MATH 3.3), so GRPO with a corrector is weighted REINFORCE too."""
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path)
    metrics, gradient = step(learners(corrector=corrector, num_learners=2), batch)
    assert largest_relative_error(gradient, dense_reference(path, batch, WEIGHTS[corrector], centered=False)) < 2e-5
    log_p = torch.cat([logits.log_softmax(-1) for logits, _ in rows_of(batch, path)]).detach()
    rho = (
        log_p.gather(1, torch.from_numpy(batch.response_ids)[:, None])[:, 0] - torch.from_numpy(batch.rollout_logprobs)
    ).exp()
    rho = rho[torch.from_numpy(batch.loss_mask)].double()
    weights = WEIGHTS[corrector](rho)
    assert metrics["tis"] == pytest.approx(float(rho.mean()), rel=1e-4)
    assert metrics["tis_abs"] == pytest.approx(float((rho - 1).abs().mean()), rel=1e-4)
    if corrector == "none":
        assert "tis_clipfrac" not in metrics
    else:
        assert metrics["tis_clipfrac"] == pytest.approx(float((weights != rho).double().mean()), abs=1e-6)
    assert metrics["tis_weight"] == pytest.approx(float(weights.mean()), rel=1e-4)
    assert metrics["ess"] == pytest.approx(float(rho.sum() ** 2 / (len(rho) * (rho**2).sum())), rel=1e-4)


def test_sequence_weights_follow_their_response_through_packing(learners, peaked_models):
    path = peaked_models["untied"]
    batch = with_sampler(make_batch(UNEQUAL, masked=[5]), path, noise=0.2)
    spec = {"type": "sequence_mask", "low": 0.9, "high": 1.1}
    metrics, gradient = step(learners(corrector=spec, num_learners=2, token_budget=25), batch)
    assert 0 < metrics["tis_zero_fraction"] < 1
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    total = torch.zeros(())
    for sample, (logits, where) in enumerate(rows_of(batch, path, model)):
        if not batch.loss_mask[where].any():
            continue
        ids = torch.from_numpy(batch.response_ids[where])
        log_p = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        mean = (log_p.detach() - torch.from_numpy(batch.rollout_logprobs[where])).mean().exp()
        weight = float(mean) if 0.9 <= mean <= 1.1 else 0.0
        total = total - weight * float(batch.advantages[sample]) * log_p.sum()
    (total / int(batch.loss_mask.sum())).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert largest_relative_error(gradient, expected) < 2e-5


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_garbage_in_untrained_records_changes_nothing(centered_learners, peaked_models, garbage):
    batch = with_sampler(make_batch([4, 3, 6], masked=[1]), peaked_models["untied"], head=16)
    rollout, heads = batch.rollout_logprobs.copy(), batch.head_logprobs.copy()
    rollout[4:7], heads[4:7] = garbage, garbage
    clean = step(centered_learners(corrector="tis", head_top_k=16), batch)
    dirty_batch = dataclasses.replace(batch, rollout_logprobs=rollout, head_logprobs=heads)
    dirty = step(centered_learners(corrector="tis", head_top_k=16), dirty_batch)
    assert clean[0] == dirty[0]
    for name, gradient in clean[1].items():
        assert torch.equal(gradient, dirty[1][name])


@pytest.mark.parametrize(
    "field, message",
    [
        ("head_logprobs", r"recorded head.* of token 1 of sample 100 is nan"),
        ("rollout_logprobs", r"token 1 of sample 100"),
    ],
)
def test_garbage_in_trained_records_stops_by_name(centered_learners, peaked_models, field, message):
    batch = with_sampler(make_batch([4, 3], masked=[1]), peaked_models["untied"], head=16)
    array = getattr(batch, field).copy()
    array[1] = np.nan
    damaged = dataclasses.replace(batch, **{field: array})

    def attempt(learner):
        try:
            learner.update_from_rollouts(damaged, env_steps_sampled=0)
        except ValueError as error:
            return str(error), len(learner.gradients)
        return "no error", len(learner.gradients)

    ((text, steps),) = on_learners(centered_learners(head_top_k=16), attempt)
    assert re.search(message, text), text
    assert steps == 0


def test_a_batch_without_a_head_can_not_be_centered(centered_learners):
    def attempt(learner):
        try:
            learner.update_from_rollouts(make_batch([4, 3]), env_steps_sampled=0)
        except ValueError as error:
            return str(error)
        return "no error"

    (text,) = on_learners(centered_learners(), attempt)
    assert "no recorded head" in text
