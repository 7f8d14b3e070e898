"""The way of the weights from the trainer to every rollout actor."""

from rlhf_algos.weight_sync.checkpoint_layout import check_layout, checkpoint_layout
from rlhf_algos.weight_sync.shared_memory import SharedWeights, read_weights

__all__ = ["SharedWeights", "check_layout", "checkpoint_layout", "read_weights"]
