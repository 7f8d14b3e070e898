"""Looking at runs: what was measured, as rows and as pictures."""

from rlhf_algos.report.curves import plot_training
from rlhf_algos.report.run_folder import RunFolder, read_progress

__all__ = ["RunFolder", "plot_training", "read_progress"]
