"""Correctors for test_check_corrector: some that keep every promise, and classes that break one each."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch

from rlhf_algos.corrections import Correction, Corrector, IcePop, SequenceCorrector, SequenceMask, SequenceTIS


@dataclass(frozen=True)
class Good(Corrector):
    """Keeps every promise; each class below breaks one."""

    power: float = 0.5

    def weight(self, ratio):
        return ratio.detach() ** self.power


class Attached(Good):
    def weight(self, ratio):
        return ratio**self.power


class InPlace(Good):
    def weight(self, ratio):
        return ratio.detach().clamp_(max=2.0)


class NoTensor(Good):
    def weight(self, ratio):
        return 1.0


class Scalar(Good):
    def weight(self, ratio):
        return ratio.detach().mean()


class Double(Good):
    def weight(self, ratio):
        return ratio.detach().double()


class Overflows(Good):
    def weight(self, ratio):
        return ratio.detach() ** 10


class Negative(Good):
    def weight(self, ratio):
        return 1 - ratio.detach()


class Wanders(Good):
    counter: ClassVar = itertools.count()

    def weight(self, ratio):
        return torch.full_like(ratio, next(self.counter))


class Positional(Good):
    def weight(self, ratio):
        return ratio.detach() * torch.arange(1, 1 + ratio.numel(), dtype=ratio.dtype).view(ratio.shape)


class LastDimension(Good):
    def weight(self, ratio):
        return torch.ones_like(ratio) / ratio.shape[-1]


class MemoryOrder(Good):
    def weight(self, ratio):
        return ratio.detach() if ratio.is_contiguous() else 2 * ratio.detach()


class Normalized(Good):
    def weight(self, ratio):
        return ratio.detach() / ratio.detach().sum()


class NoEmpty(Good):
    def weight(self, ratio):
        return ratio.detach() if ratio.numel() else ratio.new_zeros(1)


class PlainTuple(Good):
    def correct(self, log_ratio, sample_ids, loss_mask):
        return tuple(super().correct(log_ratio, sample_ids, loss_mask))


class Changes(Good):
    """Returns what `change` makes of a good result and the batch."""

    change: ClassVar = staticmethod(lambda found, *tokens: found)

    def correct(self, log_ratio, sample_ids, loss_mask):
        found = super().correct(log_ratio, sample_ids, loss_mask)
        return self.change(found, log_ratio, sample_ids, loss_mask)


def changing(change, base=Changes):
    return type("Changes", (base,), {"change": staticmethod(change)})


class ReplacesNan(Good):
    def correct(self, log_ratio, sample_ids, loss_mask):
        return super().correct(log_ratio.nan_to_num(0.0), sample_ids, loss_mask)


class SequenceChanges(SequenceTIS):
    change: ClassVar = staticmethod(lambda found, *tokens: found)

    def correct(self, log_ratio, sample_ids, loss_mask):
        found = super().correct(log_ratio, sample_ids, loss_mask)
        return self.change(found, log_ratio, sample_ids, loss_mask)


class SequenceNaN(SequenceTIS):
    """Reads what stands at untrained tokens."""

    def correct(self, log_ratio, sample_ids, loss_mask):
        weights, ratios = super().correct(log_ratio, sample_ids, loss_mask)
        factor = 1.0 if torch.isfinite(log_ratio).all() else 0.5
        return Correction(torch.where(loss_mask, weights * factor, weights), ratios)


class SequenceFirst(SequenceTIS):
    """The first token of the batch decides."""

    def correct(self, log_ratio, sample_ids, loss_mask):
        weights, ratios = super().correct(log_ratio, sample_ids, loss_mask)
        factor = 2.0 if sample_ids[0] == 7 else 1.0
        return Correction(torch.where(loss_mask, weights * factor, weights), ratios)


class SequenceShared(SequenceTIS):
    """Compares a response with the whole batch."""

    def sequence_weight(self, ratio):
        return ratio / ratio.max() if len(ratio) else ratio


class SettingsNoType(Good):
    def settings(self):
        return {"power": self.power}


class SettingsTensor(Good):
    def settings(self):
        return super().settings() | {"power": torch.tensor(1.0)}


class SettingsForget(Good):
    def settings(self):
        return {"type": super().settings()["type"]}


class SettingsOther(Good):
    def settings(self):
        return super().settings() | {"power": 3.0}


class OwnSequence(SequenceCorrector):
    def sequence_weight(self, ratio):
        return ratio.sqrt()


@dataclass(frozen=True)
class VetoedIcePop(IcePop):
    """Neither elementwise nor one weight per response: IcePop on the tokens of the responses SequenceMask keeps."""

    elementwise: ClassVar[bool] = False

    def correct(self, log_ratio, sample_ids, loss_mask):
        weights, ratios = super().correct(log_ratio, sample_ids, loss_mask)
        kept = SequenceMask(low=0.8, high=1.2).correct(log_ratio, sample_ids, loss_mask).weights > 0
        return Correction(torch.where(kept, weights, torch.zeros_like(weights)), ratios)


# ---- what `changing` may do to a good result -----------------------------------------------------------------------


def weights_doubled(found, log_ratio, sample_ids, loss_mask):
    return found._replace(weights=torch.where(loss_mask, 2 * found.weights, found.weights))


def first_doubled(found, log_ratio, sample_ids, loss_mask):
    weights = found.weights.clone()
    weights[0] *= 2
    return found._replace(weights=weights)


def ratios_doubled_at_first(found, log_ratio, sample_ids, loss_mask):
    ratios = found.ratios.clone()
    ratios[0] *= 2
    return found._replace(ratios=ratios)


def raw_at_untrained(found, log_ratio, sample_ids, loss_mask):
    return found._replace(ratios=torch.where(loss_mask, found.ratios, torch.zeros_like(found.ratios)))
