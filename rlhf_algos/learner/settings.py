"""What a learner is told: everything that it reads of a configuration, with the exchangeable parts as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_algos.corrections import Corrector, NoCorrection
from rlhf_algos.learner.deepspeed_settings import deepspeed_settings
from rlhf_algos.learner.token_loss import TokenLoss
from rlhf_algos.objectives.kl_penalty import KlKind
from rlhf_algos.objectives.reduction import ReductionMode
from rlhf_algos.routing_replay import NoReplay, RouterReplay


@dataclass(frozen=True)
class LearnerSettings:
    """The settings of one learner; those of an update may differ in `token_loss`, `corrector` and `router_replay`.

    Attributes:
        token_loss: the algorithm's.
        model: directory or hub id that the model is loaded from.
        dtype: "float32" or "bfloat16" (with float32 master weights).
        trust_remote_code: run code that ships with the model.
        temperature: the sampler's.
        corrector: what is done about the difference between trainer and sampler (MATH 5).
        router_replay: whose experts the model uses (MATH 6).
        kl_coefficient: weight of the KL penalty to the starting model; 0 loads no such model.
        kl_kind: its estimator.
        entropy_coefficient: weight of the entropy bonus.
        loss_reduction: how token losses become one number (MATH 4.1).
        loss_fixed_length: the divisor of "seq-mean-token-sum-norm", None otherwise.
        lr: a number, or a schedule `[[step, value], ...]` over sampled responses.
        grad_clip: largest global gradient norm, or None.
        adam_betas, adam_eps, weight_decay: AdamW's.
        num_epochs: passes over a batch.
        minibatch_size: responses of an optimizer step; None takes all.
        seed: of the order of minibatches.
        zero_stage: 1, 2 or 3.
        offload_optimizer: optimizer states in host memory.
        token_budget: tokens of a micro-batch.
        deepspeed_config: further settings of DeepSpeed, merged and checked.
        threads: of this process.
    """

    token_loss: TokenLoss
    model: str
    dtype: str = "float32"
    trust_remote_code: bool = False
    temperature: float = 1.0
    corrector: Corrector = field(default_factory=NoCorrection)
    router_replay: RouterReplay = field(default_factory=NoReplay)
    kl_coefficient: float = 0.0
    kl_kind: KlKind = "k3"
    entropy_coefficient: float = 0.0
    loss_reduction: ReductionMode = "token-mean"
    loss_fixed_length: int | None = None
    lr: float | Sequence[Sequence[float]] = 0.0
    grad_clip: float | None = None
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    num_epochs: int = 1
    minibatch_size: int | None = None
    seed: int | None = None
    zero_stage: int = 1
    offload_optimizer: bool = False
    token_budget: int = 8192
    deepspeed_config: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1

    def deepspeed(self, num_parameters: int | None = None) -> dict[str, Any]:
        """The dictionary for `deepspeed.initialize`.

        Args:
            num_parameters: of the model; buffers for communication are made no larger than that.

        Raises:
            ValueError: on a setting of DeepSpeed that is unknown or belongs to another option.
        """
        return deepspeed_settings(
            zero_stage=self.zero_stage,
            bfloat16=self.dtype == "bfloat16",
            offload_optimizer=self.offload_optimizer,
            grad_clip=self.grad_clip,
            num_parameters=num_parameters,
            overrides=self.deepspeed_config,
        )
