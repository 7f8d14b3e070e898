"""Correctors: how much a sampled token counts, given the ratio of the trainer's and the sampler's probability."""

from rlhf_algos.corrections.check_corrector import check_corrector
from rlhf_algos.corrections.corrector import Correction, Corrector
from rlhf_algos.corrections.metrics import correction_metrics
from rlhf_algos.corrections.registry import CORRECTORS, CorrectorSpec, make_corrector
from rlhf_algos.corrections.sequence_level import SequenceCorrector, SequenceMask, SequenceTIS
from rlhf_algos.corrections.token_wise import TIS, IcePop, ImportanceSampling, NoCorrection

__all__ = [
    "CORRECTORS",
    "TIS",
    "Correction",
    "Corrector",
    "CorrectorSpec",
    "IcePop",
    "ImportanceSampling",
    "NoCorrection",
    "SequenceCorrector",
    "SequenceMask",
    "SequenceTIS",
    "check_corrector",
    "correction_metrics",
    "make_corrector",
]
