"""`check_corrector`: does a corrector keep the promises that the losses and score centering rely on?"""

import inspect
import json
import sys
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_algos.corrections.corrector import Correction, Corrector
from rlhf_algos.corrections.registry import CORRECTORS, CorrectorSpec, make_corrector
from rlhf_algos.corrections.sequence_level import SequenceCorrector
from rlhf_algos.objectives.ratios import clamped_ratio

DTYPES = (torch.float32, torch.float64)
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e30)
# What a rearrangement may move: sums in another order, and another code path of exp for a strided tensor.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


class Tokens(NamedTuple):
    """A small batch, its responses mixed and out of order."""

    log_ratio: Tensor  # [T]
    sample_ids: Tensor  # [T] int64
    loss_mask: Tensor  # [T] bool

    def at(self, index: Tensor) -> "Tokens":
        """The tokens that `index` selects."""
        return Tokens(*(field[index] for field in self))


def check_corrector(corrector: CorrectorSpec) -> None:
    """Checks a corrector: elementwise if it says so, detached, finite, independent, and rebuilt by its settings.

    A `SequenceCorrector` must give all trained tokens of a response one weight. Any other corrector with
    `elementwise = False` may weigh its tokens differently, but may not look beyond their response.

    Args:
        corrector: an instance, or anything that `make_corrector` takes: a class, a name, a dotted path, a dict.

    Raises:
        AssertionError: the first broken promise, with the corrector's name and the values.
        TypeError: not a corrector.
        ValueError: an unknown name or option, or a weight that can't multiply a loss.
    """
    checked = make_corrector(corrector)
    name = type(checked).__name__
    for dtype in DTYPES:
        if checked.elementwise:
            check_weight(checked, name, dtype)
            check_elementwise(checked, name, dtype)
        for scale in (1.0, 20.0):
            tokens = example_tokens(dtype, scale)
            check_correct(checked, name, tokens)
            check_independence(checked, name, tokens)
    check_nan_stops(checked, name)
    check_settings(checked, name)


def ratio_grid(dtype: torch.dtype) -> Tensor:
    """84 ratios from e^-20 to e^20, 1 among them."""
    return torch.cat([torch.linspace(-20, 20, 81), torch.tensor([-1e-3, 0.0, 1e-3])]).to(dtype).exp()


def example_tokens(dtype: torch.dtype, scale: float) -> Tokens:
    """Three responses, not contiguous; token 5 is untrained, and so is the whole of response 40."""
    log_ratio = torch.tensor([0.1, -0.2, 0.3, -0.05, 0.4, 0.9, 0.0, -0.6, 0.25, 0.7], dtype=dtype) * scale
    sample_ids = torch.tensor([7, -3, 7, 10**12, -3, 7, 40, 10**12, 7, -3])
    loss_mask = (torch.arange(10) != 5) & (sample_ids != 40)
    return Tokens(log_ratio, sample_ids, loss_mask)


def check_weight(corrector: Corrector, name: str, dtype: torch.dtype) -> None:
    """Checks the result of `weight`: shape, dtype, detached, finite, not negative, repeatable; its input is kept."""
    ratio = ratio_grid(dtype)
    given = ratio.clone()
    weights = corrector.weight(given)
    if not torch.equal(given, ratio):
        raise AssertionError(f"{name}: weight() changed the ratios it was given, which the metrics still need.")
    if not isinstance(weights, Tensor):
        raise AssertionError(f"{name}: weight() returned a {type(weights).__name__}, not a tensor.")
    if weights.shape != ratio.shape or weights.dtype != dtype:
        raise AssertionError(
            f"{name}: weight() of shape {tuple(ratio.shape)}, {dtype} has shape {tuple(weights.shape)}, "
            f"{weights.dtype}. It must be the same."
        )
    for problem, where in (("not finite", ~torch.isfinite(weights)), ("negative", weights < 0)):
        if where.any():
            raise AssertionError(f"{name}: the ratio {ratio[where][0]:g} has weight {weights[where][0]:g}, {problem}.")
    again = corrector.weight(given.requires_grad_())
    if again.requires_grad:
        raise AssertionError(
            f"{name}: weight() is not detached: the loss would gain a gradient through the weight. "
            "Start from ratio.detach()."
        )
    if not torch.equal(again, weights):
        raise AssertionError(f"{name}: weight() of the same ratios gave other weights the second time.")


def check_elementwise(corrector: Corrector, name: str, dtype: torch.dtype) -> None:
    """Checks that a weight depends on its own ratio only: any arrangement of the ratios gives that of the weights."""
    ratio = ratio_grid(dtype)
    weights = corrector.weight(ratio)
    order = torch.randperm(len(ratio), generator=torch.Generator().manual_seed(0))
    arrangements = {
        "permuted": (ratio[order], weights[order]),
        "reshaped to [12, 7]": (ratio.view(12, 7), weights.view(12, 7)),
        "transposed": (ratio.view(12, 7).T, weights.view(12, 7).T),
        "sliced": (ratio[5::3], weights[5::3]),
        "empty": (ratio[:0], weights[:0]),
    }
    for arrangement, (arranged, expected) in arrangements.items():
        found = corrector.weight(arranged)
        if found.shape != expected.shape:
            raise AssertionError(
                f"{name}: weight() of {arrangement} ratios has shape {tuple(found.shape)}, not {tuple(expected.shape)}."
            )
        if not same(found, expected):
            place = (found - expected).abs().flatten().argmax()
            raise AssertionError(
                f"{name}: the ratio {arranged.flatten()[place]:g} has weight {expected.flatten()[place]:g}, and "
                f"{found.flatten()[place]:g} when the ratios are {arrangement}. weight() may look at each ratio by "
                "itself only; a weight of a whole response needs elementwise = False and its own correct()."
            )


def check_correct(corrector: Corrector, name: str, tokens: Tokens) -> None:
    """Checks the result of `correct`: shape, dtype, detached, repeatable, 1 at untrained tokens, one per response."""
    found = corrector.correct(tokens.log_ratio.clone().requires_grad_(), tokens.sample_ids, tokens.loss_mask)
    if not isinstance(found, Correction):
        raise AssertionError(f"{name}: correct() returned a {type(found).__name__}, not a Correction.")
    weights, ratios = found
    for field, values in found._asdict().items():
        if values.shape != tokens.log_ratio.shape or values.dtype != tokens.log_ratio.dtype:
            raise AssertionError(
                f"{name}: correct() of shape {tuple(tokens.log_ratio.shape)}, {tokens.log_ratio.dtype} gave {field} of "
                f"shape {tuple(values.shape)}, {values.dtype}. It must be the same."
            )
        if values.requires_grad:
            raise AssertionError(f"{name}: the {field} of correct() are not detached.")
        if not torch.isfinite(values).all() or (values < 0).any():
            raise AssertionError(
                f"{name}: the {field} of correct() must be finite and not negative: {values.tolist()}."
            )
        if not (values[~tokens.loss_mask] == 1).all():
            raise AssertionError(
                f"{name}: the {field} of correct() must be 1 at untrained tokens; got "
                f"{values[~tokens.loss_mask].tolist()}."
            )
    if not all(map(torch.equal, corrector.correct(*tokens), (weights, ratios))):
        raise AssertionError(f"{name}: correct() of the same tokens gave another result the second time.")
    if corrector.elementwise:
        mask = tokens.loss_mask
        if not same(ratios[mask], clamped_ratio(tokens.log_ratio)[mask]) or not same(
            weights[mask], corrector.weight(ratios)[mask]
        ):
            raise AssertionError(
                f"{name}: elementwise is True, but correct() gives other ratios than exp(clamp(log_ratio, -20, 20)), "
                "or other weights than weight() of them."
            )
    elif isinstance(corrector, SequenceCorrector):
        check_one_weight_per_response(name, tokens, weights, ratios)


def check_one_weight_per_response(name: str, tokens: Tokens, weights: Tensor, ratios: Tensor) -> None:
    """Checks that all trained tokens of a response have the same weight and ratio."""
    for sample in tokens.sample_ids[tokens.loss_mask].unique():
        mine = tokens.loss_mask & (tokens.sample_ids == sample)
        for field, values in (("weights", weights), ("ratios", ratios)):
            if not (values[mine] == values[mine][0]).all():
                raise AssertionError(
                    f"{name} is a SequenceCorrector, but the {field} of one response are {values[mine].tolist()}. "
                    "All its trained tokens must have the same; derive from Corrector if they need not."
                )


def check_independence(corrector: Corrector, name: str, tokens: Tokens) -> None:
    """Checks that neither untrained tokens, nor their order, nor other responses change anything."""
    expected = corrector.correct(*tokens)
    for garbage in GARBAGE:
        log_ratio = torch.where(tokens.loss_mask, tokens.log_ratio, torch.full_like(tokens.log_ratio, garbage))
        found = corrector.correct(log_ratio, tokens.sample_ids, tokens.loss_mask)
        require_same(found, expected, f"{name}: {garbage} at untrained tokens changed")
    order = torch.randperm(len(tokens.log_ratio), generator=torch.Generator().manual_seed(0))
    found = corrector.correct(*tokens.at(order))
    require_same(found, Correction(*(field[order] for field in expected)), f"{name}: another order of tokens changed")
    for sample in tokens.sample_ids.unique():
        mine = tokens.sample_ids == sample
        own = Correction(*(field[mine] for field in expected))
        moved = tokens._replace(log_ratio=torch.where(mine, tokens.log_ratio, tokens.log_ratio - 3.0))
        for batch, kept in ((moved, mine), (tokens.at(mine), slice(None))):
            found = Correction(*(field[kept] for field in corrector.correct(*batch)))
            require_same(found, own, f"{name}: the other responses changed")


def check_nan_stops(corrector: Corrector, name: str) -> None:
    """Checks that a NaN at a trained token is an error."""
    tokens = example_tokens(torch.float32, 1.0)
    log_ratio = tokens.log_ratio.clone()
    log_ratio[2] = float("nan")
    try:
        corrector.correct(log_ratio, tokens.sample_ids, tokens.loss_mask)
    except ValueError:
        return
    raise AssertionError(f"{name}: correct() must raise ValueError for a NaN at a trained token, not replace it.")


def check_settings(corrector: Corrector, name: str) -> None:
    """Checks that `settings` are JSON, hold every option, and build an equal corrector."""
    settings = corrector.settings()
    if not isinstance(settings, dict) or "type" not in settings:
        raise AssertionError(f'{name}: settings() must be a dict with a "type"; got {settings!r}.')
    try:
        loaded = json.loads(json.dumps(settings))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{name}: settings() are not JSON ({error}): {settings!r}.") from error
    parameters = inspect.signature(type(corrector)).parameters.values()
    absent = [p.name for p in parameters if p.name not in settings and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if absent:
        raise AssertionError(f"{name}: settings() lack the option(s) {', '.join(absent)}: {settings!r}.")
    if not is_importable(type(corrector)):
        warnings.warn(
            f"{name}: settings() not checked by building it again, since the class can't be imported as "
            f"{settings['type']!r}. Define it at the top level of a module.",
            stacklevel=3,
        )
        return
    rebuilt = make_corrector(loaded)
    if rebuilt != corrector or type(rebuilt) is not type(corrector):
        raise AssertionError(f"{name}: make_corrector(settings()) gave {rebuilt!r}, not {corrector!r}.")


def is_importable(cls: type) -> bool:
    """Tell whether a name leads to the class: a short one, or that in its module."""
    module = sys.modules.get(cls.__module__)
    return cls in CORRECTORS.values() or getattr(module, cls.__qualname__, None) is cls


def same(first: Tensor, second: Tensor) -> bool:
    """Tell whether two tensors are equal up to the order of additions."""
    tolerance = TOLERANCE[second.dtype]
    return torch.allclose(first, second, rtol=tolerance, atol=0.0)


def require_same(found: Correction, expected: Correction, what: str) -> None:
    """Raises AssertionError unless both fields agree."""
    for field in Correction._fields:
        got, wanted = getattr(found, field), getattr(expected, field)
        if not same(got, wanted):
            raise AssertionError(f"{what} the {field} of correct(): {got.tolist()} instead of {wanted.tolist()}.")
