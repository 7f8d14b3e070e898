"""A Hugging Face causal language model that maps packed sequences to log-probabilities."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rlhf_algos.learner.packed_attention import attention_arguments, attention_for
from rlhf_algos.learner.packing import PackedSequences
from rlhf_algos.objectives import ChunkedLogprobs, chunked_logprobs

# A factor or cap on the logits would make the log-probabilities of the plain linear head wrong.
_LOGIT_TRANSFORMS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


class LogprobHead(nn.Linear):
    """The language-model head, returning log-probabilities instead of logits.

    It keeps the head's weight and its name, so checkpoints, tied embeddings and ZeRO-3's gathering hooks on the
    module see an ordinary linear layer; the `[tokens, vocabulary]` matrix is never stored.
    """

    @staticmethod
    def wrap(linear: nn.Linear) -> LogprobHead:
        """A head that shares the weight (and bias) of `linear`."""
        head = LogprobHead(1, 1, bias=False, device="meta")
        head.in_features, head.out_features = linear.in_features, linear.out_features
        head.weight, head.bias = linear.weight, linear.bias
        return head

    def forward(  # type: ignore[override]
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        *,
        temperature: float,
        head_ids: torch.Tensor | None,
        with_entropy: bool,
    ) -> ChunkedLogprobs:
        """Log-probabilities of `targets` `[T]` (and of `head_ids` `[T, k]`) given `hidden` `[T, width]`."""
        return chunked_logprobs(
            hidden,
            self.weight,
            targets,
            temperature=temperature,
            bias=self.bias,
            head_ids=head_ids,
            with_entropy=with_entropy,
        )


class PackedCausalLM(nn.Module):
    """Wraps a causal language model for training on packed sequences.

    Args:
        causal_lm: any `AutoModelForCausalLM` with a linear `lm_head` on unscaled logits.

    Raises:
        ValueError: if the model transforms its logits or has no linear head.
    """

    def __init__(self, causal_lm: PreTrainedModel) -> None:
        super().__init__()
        for name in _LOGIT_TRANSFORMS:
            if getattr(causal_lm.config, name, None) not in (None, 1.0):
                raise ValueError(
                    f"{type(causal_lm).__name__} has {name}={getattr(causal_lm.config, name)}: its logits are not the "
                    "head's output, so log-probabilities would be wrong. Use a model without it."
                )
        head = causal_lm.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ValueError(f"{type(causal_lm).__name__}'s output head is {type(head).__name__}, not a linear layer.")
        causal_lm.set_output_embeddings(LogprobHead.wrap(head))
        self.causal_lm = causal_lm

    def forward(
        self,
        sequences: PackedSequences,
        *,
        temperature: float,
        head_ids: torch.Tensor | None = None,
        with_entropy: bool = False,
    ) -> ChunkedLogprobs:
        """Log-probabilities of the response tokens under this model at the sampler's temperature (MATH 1)."""
        output = self.causal_lm.base_model(
            input_ids=sequences.input_ids[None],
            position_ids=sequences.position_ids[None],
            use_cache=False,
            **attention_arguments(self.causal_lm.config, sequences.lengths),
        )
        hidden = output.last_hidden_state[0].index_select(0, sequences.predicting)
        return self.causal_lm.get_output_embeddings()(
            hidden,
            sequences.targets,
            temperature=temperature,
            head_ids=head_ids,
            with_entropy=with_entropy,
        )


def load_policy(
    path: str,
    *,
    dtype: torch.dtype,
    gradient_checkpointing: bool = False,
    trust_remote_code: bool = False,
) -> PackedCausalLM:
    """Loads a model directory (or hub id) as a `PackedCausalLM`.

    Args:
        path: a directory with config and safetensors weights, or a hub id.
        dtype: of the parameters.
        gradient_checkpointing: recompute activations in the backward pass.
        trust_remote_code: run code that ships with the model; off unless the user asks for it.
    """
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    causal_lm = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=dtype,
        attn_implementation=attention_for(config),
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
    )
    # Evaluation mode switches dropout off; the sampler has none, and log-probabilities must agree with it.
    causal_lm.eval()
    if gradient_checkpointing:
        _require_no_noise(config)
        causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # transformers recomputes in training mode only.
        causal_lm.train()
    return PackedCausalLM(causal_lm)


def _require_no_noise(config: PretrainedConfig) -> None:
    """Raises ValueError if training mode would add noise that the sampler does not have."""
    for name in ("attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout", "router_jitter_noise"):
        if getattr(config, name, 0.0):
            raise ValueError(
                "language_model(gradient_checkpointing=True) runs the model in training mode, where its "
                f"{name}={getattr(config, name)} would change log-probabilities. Set it to 0 in config.json."
            )
