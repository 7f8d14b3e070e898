"""How a weight channel is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhf_algos.plugins import PluginOption
from rlhf_algos.weight_sync.channel import Channel
from rlhf_algos.weight_sync.shared_memory import SharedMemory

CHANNELS = {"shared_memory": SharedMemory}

_OPTION = PluginOption(
    "weight_channel",
    Channel,  # type: ignore[type-abstract]
    CHANNELS,
    needed_in="every process",
    takes_instances=False,
)


def channel_maker(spec: Any) -> Callable[[], Channel]:
    """What makes the channel that a setting describes: of each run its own, so nothing is made here.

    Args:
        spec: "shared_memory", a `Channel` class, its dotted path "package.module.ClassName", or a mapping
            `{"type": one of these, option: value, ...}`.

    Raises:
        ImportError, TypeError, ValueError: as `PluginOption.maker` does.
    """
    if isinstance(spec, Channel):
        raise TypeError(
            f"weight_channel={spec!r} is open already, and each run needs its own: give its class, or "
            '{"type": class, option: value, ...}.'
        )
    return _OPTION.maker(spec)
