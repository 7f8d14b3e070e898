"""What leaves a learner: its weights under the names of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import distributed, nn

from rlhf_algos.learner.accelerator import deepspeed
from rlhf_algos.learner.export import export_model
from rlhf_algos.learner.settings import LearnerSettings
from rlhf_algos.weight_sync import checkpoint_layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class WeightsOfLearner(TorchLearner):
    """Gathers, names and saves the weights of a `LanguageModelModule`."""

    settings: LearnerSettings
    _stored_copies: dict[str, str]

    @property
    def rank(self) -> int:
        """This learner's rank in the process group."""
        return distributed.get_rank()

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that stands in a checkpoint, under its trainer name: parameters, then persistent buffers.

        Parameters are gathered from all ranks one at a time, so all ranks must iterate to the end together (ZeRO-3
        gathers with collectives), and a tensor is only valid until the next one is asked for. Of tied parameters the
        first is given. Buffers (the correction bias of a router) are whole on every rank.
        """
        for name, parameter in self.causal_lm.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.settings.zero_stage == 3):
                yield name, parameter.detach()
        yield from persistent_buffers(self.causal_lm)

    def checkpoint_tensors(self) -> dict[str, torch.Tensor]:
        """What stands in the starting checkpoint, under its names, on rank 0; empty on other ranks. All ranks call it.

        Experts that transformers holds fused become per-expert tensors, by transformers' own conversion. A checkpoint
        that holds a tied head beside its embedding gets both, one tensor under two names.
        """
        tensors = self._tensors_once()
        if self.rank == 0:
            for copy, original in self._stored_copies.items():
                # transformers does not tie two tensors that differ, whatever the config says.
                tensors.setdefault(copy, tensors[original])
        return tensors

    def _read_stored_copies(self) -> None:
        """Notes which tied tensors the starting checkpoint holds beside the one they are tied to.

        When the learner is built, as the rollout actors do: a save may later replace the checkpoint.
        """
        tied: dict[str, str] = self.causal_lm.all_tied_weights_keys
        stored = checkpoint_layout(self.settings.model) if tied else {}
        self._stored_copies = {copy: original for copy, original in tied.items() if {copy, original} <= stored.keys()}

    def _tensors_once(self) -> dict[str, torch.Tensor]:
        """The same, of tied parameters the first only."""
        from transformers.core_model_loading import revert_weight_conversion

        tensors = {}
        for name, tensor in self.named_weights():
            if self.rank == 0:
                # A ZeRO-3 tensor is released again when the loop goes on.
                tensors[name] = tensor.clone() if self.settings.zero_stage == 3 else tensor
        return revert_weight_conversion(self.causal_lm, tensors) if self.rank == 0 else {}

    def save_pretrained(self, path: str) -> None:
        """Writes the model as a Hugging Face directory, in the trainer's dtype (rank 0; all ranks call it)."""
        tensors = self._tensors_once()
        if self.rank == 0:
            export_model(self.causal_lm, tensors, source=self.settings.model, path=Path(path))

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The trained model; with ZeRO-3 its parameters are on this rank only in part."""
        return self.module[DEFAULT_MODULE_ID].policy.causal_lm

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """RLlib's state, in which a rollout actor finds only the version of the weights.

        RLlib hands this state to rollout actors through the driver. The weights themselves take the way of
        `rlhf_algos.weight_sync`, so with `inference_only=True` they are not in it.
        """
        if kwargs.get("inference_only"):
            return {COMPONENT_RL_MODULE: {}, WEIGHTS_SEQ_NO: self._weights_seq_no}
        return super().get_state(components, not_components=not_components, **kwargs)


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that belong to a model's state, by name; caches that are computed when it is made do not."""
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield name, buffer.detach()
