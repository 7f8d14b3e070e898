"""Packing leaves every supported architecture's log-probabilities as they are without it, values and gradients."""

import pytest
import torch

from rlhf_algos.learner.packing import pack_sequences
from rlhf_algos.learner.policy import load_policy
from tests.learner.conftest import make_batch
from tests.routing_replay.models import ARCHITECTURES, VOCABULARY, make_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_sequences_do_not_see_each_other(architecture, tmp_path):
    model = make_model(architecture)
    model.save_pretrained(tmp_path)
    policy = load_policy(str(tmp_path), dtype=torch.float32)
    batch = make_batch([7, 3, 9], vocabulary=VOCABULARY)
    together = policy(pack_sequences(batch), temperature=1.0).logprobs
    alone = [policy(pack_sequences(batch.select([i])), temperature=1.0).logprobs for i in range(3)]
    assert torch.allclose(together, torch.cat(alone), atol=2e-5)
    # And alone is what the plain model says.
    ids = torch.from_numpy(batch.prompt_ids[:5])
    sequence = torch.cat([ids, torch.from_numpy(batch.response_ids[:7])])
    plain = model.eval()(sequence[None]).logits[0, 4:-1].log_softmax(-1)
    assert torch.allclose(alone[0], plain.gather(1, sequence[5:, None])[:, 0], atol=2e-5)
