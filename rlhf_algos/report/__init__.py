"""Looking at runs: what was measured, as rows, as pictures and as a page."""

from rlhf_algos.report.curves import plot_training
from rlhf_algos.report.run_folder import RunFolder, read_progress
from rlhf_algos.report.write import Report, write_report

__all__ = ["Report", "RunFolder", "plot_training", "read_progress", "write_report"]
