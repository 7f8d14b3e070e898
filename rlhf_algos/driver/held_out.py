"""Whether what an evaluation plays is trained on."""

from __future__ import annotations

from collections.abc import Iterable

from rlhf_algos.driver.source import SplitFacts

HELDOUT = "heldout"


def is_held_out(evaluated: SplitFacts, trained: Iterable[SplitFacts]) -> bool:
    """Whether it is known that no evaluated problem is trained on.

    Args:
        evaluated: `split` and `split_rule` of what an evaluation played.
        trained: the same of everything that is trained on.
    """
    rule = evaluated.get("split_rule")
    return evaluated.get("split") == HELDOUT and all(
        facts.get("split") == "train" and facts.get("split_rule") == rule for facts in trained
    )
