"""Which weights an engine has, so that nothing is sampled with others in silence."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rlhf_algos.rollout.engine import Engine
from rlhf_algos.weight_sync.mismatch_injection import MismatchInjection


class EngineWeights:
    """The version of an engine's weights.

    Attributes:
        version: None before the first weights arrived, and after an update that failed.
        injection: what was done to them on purpose; None before the first arrived.
    """

    def __init__(self) -> None:
        self.version: int | None = None
        self.injection: MismatchInjection | None = None
        self._unusable: str | None = None

    def load(
        self,
        engine: Engine,
        weights: Iterable[tuple[str, torch.Tensor]],
        version: int,
        *,
        injection: MismatchInjection,
    ) -> None:
        """Replaces the engine's weights.

        Args:
            engine: that samples with them.
            weights: under checkpoint names, as the channel has brought them.
            version: theirs.
            injection: what was done to the trainer's on their way, on purpose.

        Raises:
            ValueError: if the weights are incomplete; `require` then raises until a whole set came.
        """
        self.version, self._unusable = None, "its last weight update failed"
        engine.load(weights)
        self.version, self.injection, self._unusable = version, injection, None

    def use_those_from_disk(self) -> None:
        """Makes the weights that the engine started with version 0, if no others have arrived."""
        if self.version is None and self._unusable is None:
            self.version = 0

    def require(self, version: int, *, actor: int) -> None:
        """Raises RuntimeError unless the weights have that version."""
        if self._unusable:
            raise RuntimeError(f"Rollout actor {actor} can't sample: {self._unusable}.")
        if self.version != version:
            raise RuntimeError(
                f"Rollout actor {actor} has weight version {self.version}, the driver expects "
                f"{version}. Sampling with other weights would silently be off-policy."
            )
