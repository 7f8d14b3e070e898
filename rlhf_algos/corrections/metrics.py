"""What a corrector did, per token (MATH 5)."""

from torch import Tensor

from rlhf_algos.corrections.corrector import Correction


def correction_metrics(correction: Correction, *, corrected: bool = True) -> dict[str, Tensor]:
    """Values per token, whose means over *trained* tokens are the metrics::

        tis                rho before f: 1 if the two policies agree
        tis_abs            |rho - 1|
        tis_clipfrac       1 where w != rho, else 0: the fraction that f changed
        tis_weight         w, the weight that was applied
        tis_zero_fraction  1 where w = 0, else 0: the fraction that was dropped

    `rho` and `w` are those of the correction: of the token, or of its response for a sequence-level corrector
    (then each response counts with its number of trained tokens). `tis` shows the mismatch and `tis_weight`
    what is left of it. Where nothing is corrected no weight was changed, so there is no `tis_clipfrac`: compared
    with rho, the weight 1 would count nearly every token as changed.

    Untrained tokens must not enter a mean: take it over the loss mask. To combine micro-batches and ranks add
    sums and counts (`TokenStatistics.add_mean(name, values, loss_mask)` does); a mean of means is wrong.

    Args:
        correction: result of `Corrector.correct`.
        corrected: False if it is `NoCorrection`'s.

    Returns:
        `[T]` tensors by name, dtype of the ratios.

    Gradient: none.
    """
    weights, ratios = correction
    metrics = {
        "tis": ratios,
        "tis_abs": (ratios - 1.0).abs(),
        "tis_clipfrac": (weights != ratios).to(ratios.dtype),
        "tis_weight": weights,
        "tis_zero_fraction": (weights == 0.0).to(ratios.dtype),
    }
    if not corrected:
        del metrics["tis_clipfrac"]
    return metrics
