"""The way of the weights from the trainer to every rollout actor."""

from rlhf_algos.weight_sync.channel import Channel, receive_into, send_from
from rlhf_algos.weight_sync.checkpoint_layout import check_layout, checkpoint_layout
from rlhf_algos.weight_sync.injected_channel import InjectedChannel, with_injection
from rlhf_algos.weight_sync.mismatch_injection import NO_INJECTION, MismatchInjection
from rlhf_algos.weight_sync.registry import channel_maker
from rlhf_algos.weight_sync.shared_memory import SharedMemory

__all__ = [
    "NO_INJECTION",
    "Channel",
    "InjectedChannel",
    "MismatchInjection",
    "SharedMemory",
    "channel_maker",
    "check_layout",
    "checkpoint_layout",
    "receive_into",
    "send_from",
    "with_injection",
]
