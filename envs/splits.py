"""Which problems are held out: a stable hash of the problem decides, alike in every process."""

import hashlib

SPLITS = ("train", "heldout", "all")


def split_of(key: str, heldout_fraction: float) -> str:
    """The split of a problem: "train" or "heldout".

    Args:
        key: What makes a problem the same problem, for example its prompt.
        heldout_fraction: Share of all keys that is held out, in [0, 1].
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8, person=b"rlhf-algos-split").digest()
    return "heldout" if int.from_bytes(digest) < heldout_fraction * 2**64 else "train"


def check_split(split: object) -> str:
    """The split, if it is the name of one; else raises a ValueError that lists the names."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(map(repr, SPLITS))}.")
    return str(split)
