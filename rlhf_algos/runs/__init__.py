"""Run folders: written while a run goes, and read again, as are the folders of Ray Tune's trials."""

from rlhf_algos.runs.discovery import read_runs
from rlhf_algos.runs.record import record_run, recorded_state, train_and_evaluate
from rlhf_algos.runs.run import Run
from rlhf_algos.runs.run_folder import RunFolder, read_progress

__all__ = ["Run", "RunFolder", "read_progress", "read_runs", "record_run", "recorded_state", "train_and_evaluate"]
