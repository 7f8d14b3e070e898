"""The sections of a configuration that say what trains, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rlhf_algos.algorithms.derived_settings import DerivedSettings
from rlhf_algos.algorithms.paths import absolute_deepspeed_paths


class LearnerSections(DerivedSettings):
    """Sections of the learners and of training."""

    def learners(self, *, num_threads_per_learner: int | None = NotProvided, **kwargs: Any) -> Self:
        """Sets the ZeRO ranks.

        Args:
            num_threads_per_learner: threads of each rank while it updates. None takes `num_cpus_per_learner` where that
                is given (at least 1), and otherwise an equal share of all cores of the machine.
            kwargs: RLlib's own: `num_learners`, `num_gpus_per_learner`, `num_cpus_per_learner` (what Ray counts; None
                for a share that fits every machine), ...
        """
        super().learners(**kwargs)
        return self._set(num_threads_per_learner=num_threads_per_learner)

    def deepspeed(
        self,
        *,
        zero_stage: int = NotProvided,
        offload_optimizer: bool = NotProvided,
        token_budget: int = NotProvided,
        config: Mapping[str, Any] = NotProvided,
    ) -> Self:
        """Sets the training engine.

        Args:
            zero_stage: 1 (optimizer states sharded), 2 (and gradients) or 3 (and parameters).
            offload_optimizer: optimizer states in host memory, stepped on the CPU.
            token_budget: tokens in a micro-batch; a longer sequence gets one of its own.
            config: further DeepSpeed settings, merged and checked.
        """
        return self._set(
            zero_stage=zero_stage,
            offload_optimizer=offload_optimizer,
            token_budget=token_budget,
            deepspeed_config=absolute_deepspeed_paths(config) if isinstance(config, Mapping) else config,
        )

    def training(
        self,
        *,
        prompts_per_iteration: int = NotProvided,
        group_size: int = NotProvided,
        normalize_std: bool = NotProvided,
        loss_reduction: str = NotProvided,
        loss_fixed_length: int | None = NotProvided,
        unscorable_responses: str = NotProvided,
        corrector: Any = NotProvided,
        router_replay: Any = NotProvided,
        adam_betas: Sequence[float] = NotProvided,
        adam_eps: float = NotProvided,
        weight_decay: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training options all algorithms share.

        Args:
            prompts_per_iteration: groups sampled in an iteration.
            group_size: responses to each prompt, at least 2.
            normalize_std: divide advantages by the group's standard deviation (MATH 2.1 or 2.2).
            loss_reduction: how tokens make one loss: "token-mean", "seq-mean-token-mean", "seq-mean-token-sum" or
                "seq-mean-token-sum-norm" (MATH 4.1).
            loss_fixed_length: the length that "seq-mean-token-sum-norm" divides by.
            unscorable_responses: what happens if the environment's reward raises or is no finite number: "stop" the run
                with an error that names the sample, or "leave_out": the sample is not trained on, its group's mean is
                that of the others, and `unscorable_responses_lifetime` counts it.
            corrector: what is done about the difference between trainer and sampler: a name ("none", "is", "tis",
                "icepop", "sequence_tis", "sequence_mask"), {"type": "tis", "high": 3.0}, a `Corrector` or the dotted
                path of a class of your own.
            router_replay: whose experts the trainer's mixture-of-experts layers use: "none" (their own), "r3" (those
                that the sampler chose), "r2" (those of the trainer's own old-policy pass), a `RouterReplay` or the
                dotted path of a class of your own.
            adam_betas: AdamW's decay rates of the mean and of the mean square of gradients.
            adam_eps: AdamW's summand below the fraction line.
            weight_decay: AdamW's.
            kwargs: RLlib's own: `lr` (a number or a schedule over sampled responses), `grad_clip`, `num_epochs`,
                `minibatch_size` (responses per optimizer step; None takes one step on all), ...
        """
        self.refuse_unknown_arguments("training", kwargs)
        super().training(**kwargs)
        return self._set(
            prompts_per_iteration=prompts_per_iteration,
            group_size=group_size,
            normalize_std=normalize_std,
            loss_reduction=loss_reduction,
            loss_fixed_length=loss_fixed_length,
            unscorable_responses=unscorable_responses,
            corrector=corrector,
            router_replay=router_replay,
            adam_betas=adam_betas,
            adam_eps=adam_eps,
            weight_decay=weight_decay,
        )
