"""The RLlib module that holds the trainer's language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from rlhf_algos.learner.packing import MicroBatch
from rlhf_algos.objectives import ChunkedLogprobs, renormalize_on_support
from rlhf_algos.routing_replay import RouteReplayer

if TYPE_CHECKING:
    from rlhf_algos.learner.policy import PackedCausalLM

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LanguageModelModule(TorchRLModule):
    """An `RLModule` around a Hugging Face causal language model.

    `model_config` holds `path`, `dtype`, `gradient_checkpointing`, `trust_remote_code`, `temperature` and
    `handles_routes`.

    Attributes:
        policy: the model.
        replayer: gives the model's routers their experts; None unless `handles_routes`.
    """

    def setup(self) -> None:
        """Loads the model named in `model_config`."""
        # Here: a driver names this class, and need not wait for what loads models to be imported.
        from rlhf_algos.learner.policy import load_policy

        settings: dict[str, Any] = dict(self.model_config)
        self.temperature: float = settings["temperature"]
        self.policy = load_policy(
            settings["path"],
            dtype=DTYPES[settings["dtype"]],
            gradient_checkpointing=settings["gradient_checkpointing"],
            trust_remote_code=settings["trust_remote_code"],
        )
        # Before DeepSpeed wraps the model: it must find the routers as they are.
        self.replayer = RouteReplayer(self.policy.causal_lm) if settings["handles_routes"] else None
        # The DeepSpeed engine wraps `policy` later. Kept out of torch's registry of submodules: it contains
        # `policy` itself, and would make every parameter appear twice.
        object.__setattr__(self, "run", self.policy)

    def _forward(self, batch: MicroBatch, **kwargs: Any) -> ChunkedLogprobs:
        """Log-probabilities (and head, and entropy) of the micro-batch's response tokens."""
        return logprobs_of_responses(self.run, batch, temperature=self.temperature)


def logprobs_of_responses(
    model: PackedCausalLM, batch: MicroBatch, *, temperature: float, with_entropy: bool = True
) -> ChunkedLogprobs:
    """Log-probabilities of a micro-batch's response tokens under a model.

    If top-p or top-k left only some tokens to choose from, everything is renormalized on them (MATH 7.9), so that every
    model that is compared on the batch (policy, sampler, reference) speaks of one set of outcomes.

    Args:
        model: a `PackedCausalLM`, or an engine around one.
        batch: the tokens, and what was recorded about them.
        temperature: the sampler's.
        with_entropy: also compute the entropy; on a support it costs nothing and is always there.

    Returns:
        log p `[T]` of the sampled tokens, of the head or support `[T, k]`, and the entropy `[T]`.
    """
    if batch.support_ids is None:
        return model(batch.sequences, temperature=temperature, head_ids=batch.head_ids, with_entropy=with_entropy)
    output = model(batch.sequences, temperature=temperature, head_ids=batch.support_ids, with_entropy=False)
    assert batch.support_mask is not None and output.head_logprobs is not None
    return ChunkedLogprobs(*renormalize_on_support(output.logprobs, output.head_logprobs, batch.support_mask))
