"""What a batch says about how it was sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SampledWith:
    """The settings that a batch was sampled with. Those that decide log p must be said, the others can be left out.

    Attributes:
        model: name, directory or hub id, whose weights are those of version 0.
        temperature, top_p, top_k: of the distribution that was sampled from (MATH 1).
        environment: name of the task.
        split: of the problems: "train", "heldout" or "all".
        split_rule: what decides which problems are in it; equal rules hold out the same ones.
        mismatch_injection: what was done to the sampler on purpose, JSON-able.
        max_response_tokens: a response that reached it was truncated.
        stop_token_ids: ids that ended a response besides the model's own.
        record_head: how many entries of the head were to be recorded.
        record_routes: whether routes were to be recorded.
    """

    model: str
    temperature: float
    top_p: float
    top_k: int
    environment: str | None = None
    split: str | None = None
    split_rule: str | None = None
    mismatch_injection: Mapping[str, Any] | None = None
    max_response_tokens: int | None = None
    stop_token_ids: tuple[int, ...] | None = None
    record_head: int | None = None
    record_routes: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able values of everything that is said, under the attributes' names."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        if self.stop_token_ids is not None:
            said["stop_token_ids"] = list(self.stop_token_ids)
        return said

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> SampledWith:
        """What `as_dict` gave.

        Raises:
            ValueError: if a setting that must be said is missing, or one is unknown; names it.
        """
        missing = [each.name for each in fields(SampledWith) if each.default is MISSING and each.name not in values]
        unknown = sorted(set(values) - {each.name for each in fields(SampledWith)})
        if missing or unknown:
            raise ValueError(
                f"The settings of a batch, {dict(values)}, lack {missing} and have unknown {unknown}. Settings say all "
                "that decides log p; a batch of which it is not known has none (settings=None)."
            )
        stop = values.get("stop_token_ids")
        return SampledWith(**{**values, "stop_token_ids": None if stop is None else tuple(stop)})

    @property
    def split_facts(self) -> dict[str, str | None]:
        """`split` and `split_rule`: which problems were drawn."""
        return {"split": self.split, "split_rule": self.split_rule}
