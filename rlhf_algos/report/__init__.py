"""Looking at runs: what was measured, as rows, as pictures and as a page."""

from rlhf_algos.report.curves import plot_training
from rlhf_algos.report.write import Report, write_report
from rlhf_algos.runs import RunFolder, read_progress

__all__ = ["Report", "RunFolder", "plot_training", "read_progress", "write_report"]
