"""Models that come with the library, small enough for a laptop's CPU."""

import difflib
from pathlib import Path

PREFIX = "rlhf_algos/"
BUNDLED = {"rlhf_algos/tiny-moe": "tiny_moe"}


def resolve_model(name: str) -> str:
    """The folder of a bundled model, and any other name as it is.

    Args:
        name: A bundled name ("rlhf_algos/tiny-moe"), a folder, or a Hugging Face hub id.

    Raises:
        ValueError: The name starts with "rlhf_algos/" and no bundled model has it.
    """
    if name in BUNDLED:
        return str(Path(__file__).parent / BUNDLED[name])
    if name.startswith(PREFIX):
        own_names = [bundled.removeprefix(PREFIX) for bundled in BUNDLED]
        close = difflib.get_close_matches(name.removeprefix(PREFIX), own_names, n=1)
        meant = f" Did you mean {PREFIX + close[0]!r}?" if close else ""
        raise ValueError(
            f"model={name!r}: no model of this name comes with the library.{meant} "
            f"These do: {', '.join(sorted(BUNDLED))}. Any other folder or hub id is taken as it is."
        )
    return name
