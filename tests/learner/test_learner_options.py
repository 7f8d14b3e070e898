"""Options of the learner that change what it does."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_algos.driver.calls import on_learners
from tests.learner.conftest import make_batch


def run(group, batch, *, env_steps=(0,)):
    return [
        on_learners(group, lambda learner, n=n: learner.update_from_rollouts(batch, env_steps_sampled=n))[0]
        for n in env_steps
    ]


def weights(group):
    return on_learners(group, lambda learner: {name: t.clone().float() for name, t in learner.named_weights()})[0]


def test_bfloat16_trainer_with_offloaded_optimizer_steps(learners):
    """bf16 parameters, float32 master weights on the CPU, DeepSpeed's own Adam."""
    batch = make_batch([6, 5, 7, 4])
    group = learners(dtype="bfloat16", offload_optimizer=True, num_learners=2, zero_stage=3, lr=1e-2)
    before = weights(group)
    first, second = run(group, batch, env_steps=(0, 1))
    # The second forward pass sees what the first step changed.
    assert first["entropy"] != second["entropy"]
    dtypes = on_learners(group, lambda learner: {str(p.dtype) for _, p in learner.named_weights()})[0]
    assert dtypes == {"torch.bfloat16"}
    after = weights(group)
    assert sum(not torch.equal(before[name], after[name]) for name in before) > 10


def test_learning_rate_follows_its_schedule(learners):
    batch = make_batch([6, 5, 7, 4])
    group = learners(lr=[[0, 1e-3], [100, 0.0]])
    rates = [metrics["learning_rate"] for metrics in run(group, batch, env_steps=(0, 50, 100, 200))]
    # The schedule is applied after each update: what is reported is the rate the step was taken with.
    assert rates == [1e-3, 1e-3, 5e-4, 0.0]


def test_gradient_checkpointing_gives_the_same_gradient(learners):
    batch = make_batch([6, 5, 7, 4])
    gradients = []
    for checkpointing in (False, True):
        group = learners(gradient_checkpointing=checkpointing)
        run(group, batch)
        gradients.append(on_learners(group, lambda learner: learner.gradients)[0][0])
        recomputes = on_learners(group, lambda learner: learner.causal_lm.is_gradient_checkpointing)[0]
        assert recomputes is checkpointing
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-7), name


@pytest.mark.parametrize("model", ["tied", "untied"])
def test_a_saved_model_is_the_trained_one_and_stays_tied_or_not(learners, tmp_path, model):
    """After two steps, what is loaded from disk has the learner's log-probabilities and its kind of head."""
    batch = make_batch([6, 5, 7, 4])
    group = learners(model, lr=1e-2, num_learners=2, zero_stage=3)
    run(group, batch, env_steps=(0, 1))
    on_learners(group, lambda learner: learner.save_pretrained(str(tmp_path / "model")))
    expected = on_learners(group, lambda learner: learner.old_logprobs_of(batch))[0]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    embedding, head = loaded.get_input_embeddings().weight, loaded.get_output_embeddings().weight
    assert (embedding.data_ptr() == head.data_ptr()) == (model == "tied")
    assert torch.equal(embedding, head) == (model == "tied")
    found, p, t = [], 0, 0
    for n, m in zip(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), strict=True):
        ids = torch.from_numpy(np.concatenate([batch.prompt_ids[p : p + n], batch.response_ids[t : t + m]]))
        with torch.no_grad():
            everything = loaded(ids[None]).logits[0, n - 1 : -1].log_softmax(-1)
        found.append(everything.gather(1, ids[n:, None])[:, 0])
        p, t = p + n, t + m
    assert torch.allclose(torch.cat(found), expected, atol=1e-5)
    # The steps were real: the model they began with has others.
    untrained = on_learners(learners(model), lambda learner: learner.old_logprobs_of(batch))[0]
    assert not torch.allclose(untrained, expected, atol=1e-3)


def test_a_start_compiles_nothing(learners):
    """DeepSpeed's operator for inference is neither built nor loaded; without it no compiler is needed."""
    group = learners(num_learners=2)

    def operator(learner):
        from deepspeed import comm

        return comm.comm.cdb.shm_comm_op, comm.comm.cdb.is_initialized()

    assert on_learners(group, operator) == [(None, True), (None, True)]
