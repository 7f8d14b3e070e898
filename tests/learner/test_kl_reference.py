"""The KL penalty's frozen model: on the policy's support, gone after a rebuild that does not want it."""

import dataclasses

import numpy as np
import pytest
import torch

from rlhf_algos.driver.calls import on_learners
from rlhf_algos.learner.module import logprobs_of_responses
from rlhf_algos.learner.packing import make_micro_batch
from rlhf_algos.objectives import ChunkedLogprobs, kl_estimate
from tests.learner.conftest import make_batch

# The tokens that top_p=0.75 leaves of them are 0 and 1.
PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05])


def with_support(batch, ids):
    """The batch, as if every token had been chosen from itself and the given ids."""
    supports = [[int(token), *(i for i in ids if i != token)] for token in batch.response_ids]
    lengths = np.array([len(support) for support in supports], dtype=np.int64)
    return dataclasses.replace(
        batch,
        support_lengths=lengths,
        support_ids=np.concatenate([np.array(support, dtype=np.int32) for support in supports]),
        support_logprobs=np.repeat(-np.log(lengths), lengths).astype(np.float32),
    )


def test_worked_numbers():
    """Two tokens, of probability 0.5 and 0.3 among those kept: 0.625 and 0.375 of what is left."""
    batch = make_batch([2], prompt_length=1, vocabulary=8)
    batch = with_support(dataclasses.replace(batch, response_ids=np.array([0, 1])), [0, 1])
    micro_batch = make_micro_batch(
        batch,
        rows=torch.arange(2),
        loss_weights=torch.ones(2),
        old_logprobs=None,
        with_head=False,
        routed_experts=None,
        is_dummy=False,
        device=torch.device("cpu"),
    )

    def model(sequences, *, temperature, head_ids, with_entropy):
        logprobs = PROBABILITIES.log()
        return ChunkedLogprobs(logprobs[sequences.targets], logprobs[head_ids], None)

    policy = logprobs_of_responses(model, micro_batch, temperature=1.0).logprobs
    reference = logprobs_of_responses(model, micro_batch, temperature=1.0, with_entropy=False).logprobs
    assert policy.tolist() == pytest.approx([-0.470004, -0.980829], abs=1e-6)
    for kind in ("k1", "k2", "k3"):
        assert kl_estimate(policy, reference, kind=kind).tolist() == [0, 0]
    # What a reference on the whole vocabulary would show, although the models are one.
    whole = PROBABILITIES.log()[:2]
    for kind, value in (("k1", 0.223144), ("k2", 0.024897), ("k3", 0.023144)):
        assert kl_estimate(policy, whole, kind=kind).tolist() == pytest.approx([value] * 2, abs=1e-6)


def update(group, batch):
    return on_learners(group, lambda learner: learner.update_from_rollouts(batch, env_steps_sampled=0))[0]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_before_the_first_step_it_is_zero_and_has_no_gradient(learners, kind):
    """Advantages are 0, so the gradient is the penalty's alone."""
    batch = with_support(make_batch([6, 5, 7, 4], advantages=[0, 0, 0, 0]), [10, 20, 30])
    metrics = update(learners(kl_coefficient=0.1, kl_kind=kind), batch)
    assert abs(metrics["reference_kl"]) < 1e-6
    if kind != "k1":
        assert metrics["grad_norm"] < 1e-5


def test_after_a_step_it_is_not(learners):
    batch = with_support(make_batch([6, 5, 7, 4]), [10, 20, 30])
    group = learners(kl_coefficient=0.1, lr=1e-3)
    assert update(group, batch)["reference_kl"] < 1e-6
    assert update(group, batch)["reference_kl"] > 1e-4


def describe(learner):
    """What a learner has: the names of its attributes, and of each what can be compared."""

    def comparable(value):
        return value if isinstance(value, (bool, int, float, str, tuple, type(None))) else type(value).__name__

    return {name: comparable(value) for name, value in vars(learner).items()}


def test_a_rebuilt_learner_is_as_a_new_one(learners):
    """Nothing of the old run: no model, no statistics, whatever a subclass made; and a reference in the new dtype."""
    batch = make_batch([6, 5, 7, 4])
    group = learners()
    fresh = on_learners(group, describe)[0]
    # A run that leaves as much behind as it can.
    group = learners(kl_coefficient=0.1, lr=1e-3)
    update(group, batch)
    on_learners(group, lambda learner: setattr(learner, "made_by_a_subclass", 1))

    def dtypes(learner):
        return {str(p.dtype) for p in learner.reference.parameters()}, {
            str(p.dtype) for _, p in learner.named_weights()
        }

    assert on_learners(group, dtypes)[0] == ({"torch.float32"}, {"torch.float32"})
    group = learners(kl_coefficient=0.1, dtype="bfloat16")
    assert on_learners(group, dtypes)[0] == ({"torch.bfloat16"}, {"torch.bfloat16"})
    assert abs(update(group, batch)["reference_kl"]) < 1e-6
    group = learners()
    assert on_learners(group, describe)[0] == fresh
    assert on_learners(group, lambda learner: learner.reference)[0] is None
    assert "reference_kl" not in update(group, batch)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_a_rebuild_frees_the_old_models(learners, zero_stage):
    """Also with ZeRO-3, which knows from the second step on what it releases when."""

    def number_of_models(learner):
        import gc

        from rlhf_algos.learner.policy import PackedCausalLM

        return sum(isinstance(each, PackedCausalLM) for each in gc.get_objects())

    group = learners(kl_coefficient=0.1, zero_stage=zero_stage)
    for _ in range(3):
        update(group, make_batch([6, 5]))
    assert on_learners(learners(), number_of_models)[0] == 1
