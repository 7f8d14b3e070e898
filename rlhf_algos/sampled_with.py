"""What a batch says about how it was sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SampledWith:
    """The settings that a batch was sampled with.

    The four that decide log p have no default: None, as in a file that does not say them, must be written out.

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

    model: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
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
        """What `as_dict` gave; None where nothing is said.

        Raises:
            ValueError: if a setting is unknown; names it.
        """
        said: dict[str, Any] = dict.fromkeys(each.name for each in fields(SampledWith))
        unknown = sorted(set(values) - set(said))
        if unknown:
            raise ValueError(f"The settings of a batch, {dict(values)}, have unknown {unknown}. Known: {list(said)}.")
        stop = values.get("stop_token_ids")
        return SampledWith(**{**said, **values, "stop_token_ids": None if stop is None else tuple(stop)})

    def require_model(self) -> str:
        """The model.

        Raises:
            ValueError: if it is not said.
        """
        if self.model is None:
            raise ValueError("The batch does not name its model; give model=... (a name, a directory or a hub id).")
        return self.model

    def require_distribution(self) -> tuple[float, float, int]:
        """`temperature`, `top_p` and `top_k`.

        Raises:
            ValueError: if one is not said; names it.
        """
        if self.temperature is None or self.top_p is None or self.top_k is None:
            missing = [name for name in ("temperature", "top_p", "top_k") if getattr(self, name) is None]
            raise ValueError(
                f"The batch's settings do not say {', '.join(missing)}, and log p depends on it: give it all of "
                "settings=SampledWith(model=..., temperature=..., top_p=..., top_k=...) with dataclasses.replace."
            )
        return self.temperature, self.top_p, self.top_k

    @property
    def split_facts(self) -> dict[str, str | None]:
        """`split` and `split_rule`: which problems were drawn."""
        return {"split": self.split, "split_rule": self.split_rule}
