"""RolloutBatches by hand, and a packed forward pass over them."""

import numpy as np
import torch

from rlhf_algos.batch import RolloutBatch
from rlhf_algos.learner.packed_attention import PACKED_ATTENTION, packing_index
from rlhf_algos.learner.packing import pack_sequences
from rlhf_algos.routing_replay import packed_routes


def make_batch(prompts, responses, routes):
    """Lists of token lists; `routes` is `[R, L, E]` or None."""
    count, tokens = len(prompts), sum(map(len, responses))
    return RolloutBatch(
        sample_ids=np.arange(100, 100 + count),
        group_ids=np.arange(count),
        prompt_lengths=np.array([len(p) for p in prompts], dtype=np.int64),
        response_lengths=np.array([len(r) for r in responses], dtype=np.int64),
        rewards=np.zeros(count),
        finish_reasons=np.zeros(count, dtype=np.uint8),
        prompt_ids=np.array([token for prompt in prompts for token in prompt], dtype=np.int64),
        response_ids=np.array([token for response in responses for token in response], dtype=np.int64),
        loss_mask=np.ones(tokens, dtype=np.bool_),
        rollout_logprobs=np.zeros(tokens, dtype=np.float32),
        weight_versions=np.zeros(tokens, dtype=np.int64),
        routes=None if routes is None else np.asarray(routes, dtype=np.uint8),
    )


def attention_arguments(model, sequences):
    """What keeps packed sequences apart."""
    if model.config._attn_implementation == PACKED_ATTENTION:
        return {"packing": packing_index(sequences.lengths)}
    # gpt-oss: transformers 5.24 ignores position ids when it makes this model's masks, so they are made here.
    sample = torch.repeat_interleave(torch.arange(len(sequences.lengths)), sequences.lengths)
    row = torch.arange(len(sample))
    distance = row[:, None] - row
    full = (sample[:, None] == sample) & (distance >= 0)
    sliding = full & (distance < model.config.sliding_window)
    masks = {"full_attention": full, "sliding_attention": sliding}
    lowest = torch.finfo(torch.float32).min
    return {"attention_mask": {name: (~mask)[None, None].float() * lowest for name, mask in masks.items()}}


def logprobs_by_sample(model, replayer, batch):
    """One packed pass with the batch's routes: log-probs of each sample's response tokens, by sample id."""
    sequences = pack_sequences(batch)
    with replayer.replaying(packed_routes(batch, num_experts=replayer.num_experts)):
        hidden = model.base_model(
            input_ids=sequences.input_ids[None],
            position_ids=sequences.position_ids[None],
            use_cache=False,
            **attention_arguments(model, sequences),
        ).last_hidden_state[0]
    logprobs = model.lm_head(hidden[sequences.predicting]).log_softmax(-1)
    chosen = logprobs.gather(-1, sequences.targets[:, None])[:, 0].detach()
    parts = torch.split(chosen, batch.response_lengths.tolist())
    return dict(zip(batch.sample_ids.tolist(), parts, strict=True))
