"""The batch: the only thing that crosses from rollout actors to learners, and what is saved to disk.

Legend of dimensions, used in every file of this package:

    B   samples (one response to one prompt each)
    P   prompt tokens of all samples together
    T   response tokens of all samples together (observations of later turns included, with mask 0)
    k   entries of the recorded head of the sampler's distribution
    S   entries of all recorded supports together (sampling with top-p or top-k)
    L   mixture-of-experts layers
    E   experts chosen per token and layer

Nothing is padded: the tokens of all samples stand one after another, sample by sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_algos.batch_file import BatchHeader, content_hash, read_arrays, read_header, write_arrays
from rlhf_algos.sampled_with import SampledWith

__all__ = ["FINISH_LENGTH", "FINISH_STOP", "BatchHeader", "RolloutBatch", "SampledWith", "read_header"]

#: Why a response ended: at an end-of-sequence token or stop string (terminated), or at a length limit (truncated).
FINISH_STOP, FINISH_LENGTH = 0, 1

# For each array: its dtype, and what its first dimension counts.
_LAYOUT: dict[str, tuple[Any, str]] = {
    "sample_ids": (np.int64, "B"),
    "group_ids": (np.int64, "B"),
    "prompt_lengths": (np.int64, "B"),
    "response_lengths": (np.int64, "B"),
    "rewards": (np.float64, "B"),
    "finish_reasons": (np.uint8, "B"),
    "prompt_ids": (np.int64, "P"),
    "response_ids": (np.int64, "T"),
    "loss_mask": (np.bool_, "T"),
    "rollout_logprobs": (np.float32, "T"),
    "weight_versions": (np.int64, "T"),
    "head_ids": (np.int32, "T"),
    "head_logprobs": (np.float32, "T"),
    "support_lengths": (np.int64, "T"),
    "support_ids": (np.int32, "S"),
    "support_logprobs": (np.float32, "S"),
    "routes": (None, "R"),
    "advantages": (np.float32, "B"),
}


@dataclass(frozen=True)
class RolloutBatch:
    """Sampled responses with everything needed to train on them.

    Attributes:
        sample_ids: `[B]` int64, unique within a run.
        group_ids: `[B]` int64; the members of a group answer the same prompt. Position means nothing.
        prompt_lengths, response_lengths: `[B]` int64, in tokens; a response may be empty.
        rewards: `[B]` float64, the number that the environment returned; NaN for a response without one.
        finish_reasons: `[B]` uint8, `FINISH_STOP` or `FINISH_LENGTH`.
        prompt_ids: `[P]` int64.
        response_ids: `[T]` int64, exactly the ids that were sampled, never re-encoded text.
        loss_mask: `[T]` bool, True where a token is trained on.
        rollout_logprobs: `[T]` float32, log q of the distribution that was sampled from (MATH 1).
        weight_versions: `[T]` int64, the version of the weights that sampled each token (MATH 8).
        head_ids, head_logprobs: `[T, k]`, the k most probable tokens under q and their log q; None if not recorded.
        support_lengths: `[T]` int64, support_ids: `[S]` int32 and support_logprobs: `[S]` float32, the tokens that
            top-p or top-k left to choose from at each position and their renormalized log q; None if the full
            distribution was sampled from.
        routes: `[R, L, E]` uint8 or uint16 with R = P + T - B, the experts chosen at every position of every
            sample but its last, which is never routed (MATH 6.4); None if not recorded.
        advantages: `[B]` float32; None until the algorithm has computed them.
        settings: how the batch was sampled (model, temperature, environment, ...); None if it does not say, as one made
            by hand need not.

    Raises:
        ValueError: if lengths, dtypes or ids contradict each other; the message names the field.
    """

    sample_ids: np.ndarray
    group_ids: np.ndarray
    prompt_lengths: np.ndarray
    response_lengths: np.ndarray
    rewards: np.ndarray
    finish_reasons: np.ndarray
    prompt_ids: np.ndarray
    response_ids: np.ndarray
    loss_mask: np.ndarray
    rollout_logprobs: np.ndarray
    weight_versions: np.ndarray
    head_ids: np.ndarray | None = None
    head_logprobs: np.ndarray | None = None
    support_lengths: np.ndarray | None = None
    support_ids: np.ndarray | None = None
    support_logprobs: np.ndarray | None = None
    routes: np.ndarray | None = None
    advantages: np.ndarray | None = None
    settings: SampledWith | None = None

    def __post_init__(self) -> None:
        """Checks shapes and dtypes; a contradiction is an error here, not a wrong gradient later."""
        _require_consistent(self)

    @property
    def num_samples(self) -> int:
        """B."""
        return len(self.sample_ids)

    @property
    def num_response_tokens(self) -> int:
        """T."""
        return len(self.response_ids)

    @property
    def num_trained_tokens(self) -> int:
        """Response tokens with mask 1."""
        return int(self.loss_mask.sum())

    @property
    def scored(self) -> np.ndarray:
        """`[B]` bool, the samples that have a reward."""
        return np.isfinite(self.rewards)

    @property
    def token_sample_index(self) -> np.ndarray:
        """`[T]` int64, the position in the batch of the sample that each response token belongs to."""
        return np.repeat(np.arange(self.num_samples), self.response_lengths)

    @property
    def trained_tokens_of_samples(self) -> np.ndarray:
        """`[B]` float64, how many tokens of each sample are trained on."""
        return np.bincount(self.token_sample_index, weights=self.loss_mask, minlength=self.num_samples)

    def env_steps(self) -> int:
        """Environment steps in RLlib's sense: one step per response."""
        return self.num_samples

    def agent_steps(self) -> int:
        """Agent steps in RLlib's sense; the same as `env_steps` for a single agent."""
        return self.num_samples

    def require_settings(self) -> SampledWith:
        """The settings.

        Raises:
            ValueError: if the batch has none.
        """
        if self.settings is None:
            raise ValueError(
                "The batch does not say how it was sampled: give it settings=SampledWith(model=..., temperature=..., "
                "top_p=..., top_k=...) with dataclasses.replace."
            )
        return self.settings

    def without_reward(self, samples: np.ndarray) -> RolloutBatch:
        """The batch in which the given samples (`[B]` bool) have no reward and are not trained on."""
        return replace(
            self,
            rewards=np.where(samples, np.nan, self.rewards),
            loss_mask=self.loss_mask & ~np.repeat(samples, self.response_lengths),
        )

    def select(self, indices: Sequence[int] | np.ndarray) -> RolloutBatch:
        """The samples at `indices`, in that order, with all their tokens."""
        indices = np.asarray(indices, dtype=np.int64)
        rows = {
            "B": indices,
            "P": _token_rows(self.prompt_lengths, indices),
            "T": _token_rows(self.response_lengths, indices),
            "R": _token_rows(self.prompt_lengths + self.response_lengths - 1, indices),
        }
        if self.support_lengths is not None:
            rows["S"] = _token_rows(self.support_lengths, rows["T"])
        arrays: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows[dimension]]
            for name, (_, dimension) in _LAYOUT.items()
        }
        return replace(self, **arrays)

    @staticmethod
    def concatenate(batches: Iterable[RolloutBatch]) -> RolloutBatch:
        """One batch of all samples. An optional field must be in all batches or in none.

        Raises:
            ValueError: on no batch, on a field that only some batches have, or on different settings.
        """
        batches = list(batches)
        if not batches:
            raise ValueError("RolloutBatch.concatenate needs at least one batch.")
        if any(batch.settings != batches[0].settings for batch in batches):
            raise ValueError(
                "RolloutBatch.concatenate: the batches were sampled with different settings: "
                f"{[batch.settings for batch in batches]}."
            )
        arrays: dict[str, Any] = {}
        for name in _LAYOUT:
            parts = [getattr(batch, name) for batch in batches]
            missing = sum(part is None for part in parts)
            if missing not in (0, len(parts)):
                raise ValueError(
                    f"RolloutBatch.concatenate: {name} is recorded in {len(parts) - missing} of {len(parts)} batches."
                )
            arrays[name] = None if missing else np.concatenate(parts)
        return replace(batches[0], **arrays)

    @property
    def content_hash(self) -> str:
        """SHA-256 of every field, its name, dtype and shape, and of the settings; equal batches have equal hashes."""
        return content_hash(self._arrays(), self.settings)

    def save(self, path: str | Path, *, origin: Mapping[str, Any] | None = None) -> Path:
        """Writes one safetensors file with settings (as JSON) and content hash in its header; returns its path.

        Args:
            path: of the file.
            origin: JSON-able facts about who wrote it, for `read_header`; no part of the content and its hash.
        """
        path = Path(path)
        header = BatchHeader(self.settings, self.content_hash, None if origin is None else dict(origin))
        write_arrays(path, self._arrays(), header)
        return path

    @staticmethod
    def load(path: str | Path) -> RolloutBatch:
        """Reads what `save` wrote.

        Raises:
            ValueError: if the file is truncated, not a RolloutBatch, of another format version, or its content is not
                what was saved.
        """
        path = Path(path)
        header = read_header(path)
        required = {f.name for f in fields(RolloutBatch) if f.name in _LAYOUT and f.default is not None}
        arrays = read_arrays(path, required=required, known=set(_LAYOUT))
        batch = RolloutBatch(**arrays, settings=header.settings)
        if batch.content_hash != header.content_hash:
            raise ValueError(f"{path} was changed after it was saved: its content does not match its header's hash.")
        return batch

    def _arrays(self) -> dict[str, np.ndarray]:
        """The arrays that the batch has, in the order of the layout."""
        return {name: getattr(self, name) for name in _LAYOUT if getattr(self, name) is not None}


def _require_consistent(batch: RolloutBatch) -> None:
    counts = {
        "B": len(batch.sample_ids),
        "P": int(batch.prompt_lengths.sum()),
        "T": int(batch.response_lengths.sum()),
    }
    counts["R"] = counts["P"] + counts["T"] - counts["B"]
    counts["S"] = 0 if batch.support_lengths is None else int(batch.support_lengths.sum())
    for name, (dtype, dimension) in _LAYOUT.items():
        array = getattr(batch, name)
        if array is None:
            continue
        if len(array) != counts[dimension]:
            raise ValueError(
                f"RolloutBatch.{name} has {len(array)} rows, but the batch has "
                f"{dimension} = {counts[dimension]} (samples B = {counts['B']}, prompt tokens P = "
                f"{counts['P']}, response tokens T = {counts['T']})."
            )
        if dtype is not None and array.dtype != dtype:
            raise ValueError(f"RolloutBatch.{name} must have dtype {np.dtype(dtype)}, got {array.dtype}.")
    if counts["B"] and int(batch.prompt_lengths.min()) < 1:
        raise ValueError("RolloutBatch.prompt_lengths: every prompt needs at least one token.")
    if (batch.head_ids is None) != (batch.head_logprobs is None):
        raise ValueError("RolloutBatch: head_ids and head_logprobs are recorded together or not at all.")
    support = (batch.support_lengths, batch.support_ids, batch.support_logprobs)
    if sum(array is None for array in support) not in (0, 3):
        raise ValueError(
            "RolloutBatch: support_lengths, support_ids and support_logprobs are recorded together or not at all."
        )
    if batch.routes is not None and batch.routes.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"RolloutBatch.routes must be uint8 or uint16, got {batch.routes.dtype}.")
    if batch.settings is not None and not isinstance(batch.settings, SampledWith):
        raise ValueError(
            f"RolloutBatch.settings={batch.settings!r} must be a SampledWith, or None if it is not known how the "
            "batch was sampled (SampledWith.from_dict makes one of a dict)."
        )
    if len(np.unique(batch.sample_ids)) != counts["B"]:
        raise ValueError("RolloutBatch.sample_ids must be unique; the same sample was added twice.")


def _token_rows(lengths: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Rows of a flat token array that belong to the samples at `indices`, in that order."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else np.zeros(0, np.int64)
    chosen = lengths[indices]
    total = int(chosen.sum())
    within = np.arange(total) - np.repeat(np.cumsum(chosen) - chosen, chosen)
    return (np.repeat(starts[indices], chosen) + within).astype(np.int64)
