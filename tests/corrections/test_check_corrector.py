"""check_corrector: all our correctors pass; each promise broken once is named."""

import itertools
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from rlhf_algos.corrections import CORRECTORS, check_corrector, make_corrector
from tests.corrections import broken_correctors as broken
from tests.corrections.broken_correctors import changing

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "corrector",
    [*CORRECTORS, broken.Good, broken.Good(2.0), broken.OwnSequence(high=3.0), broken.VetoedIcePop(high=3.0)],
    ids=str,
)
def test_ours_and_good_ones_of_a_user_pass(corrector):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_corrector(corrector)


def test_the_example(monkeypatch):
    shown = subprocess.run(
        [sys.executable, str(ROOT / "examples/my_corrector.py")], capture_output=True, text=True, check=True
    ).stdout
    assert shown.startswith("SmoothWindow keeps every promise\n")
    assert "ratio 1.000   weight 1.000" in shown
    assert "ratio 2.000   weight 1.225" in shown
    assert "ratio 8.000   weight 0.097" in shown
    monkeypatch.syspath_prepend(ROOT / "examples")
    spec = {"type": "my_corrector.SmoothWindow", "width": 0.5}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_corrector(spec)
    assert make_corrector(spec).settings() == spec


COUNTER = itertools.count(1)

ELEMENTWISE = (
    "weight() may look at each ratio by itself only; a weight of a whole response needs elementwise = False and its "
    "own correct()."
)
#: `#` stands for a number, `[#]` for a list of them.
BROKEN = {
    broken.Attached: (
        "Attached: weight() is not detached: the loss would gain a gradient through the weight. "
        "Start from ratio.detach()."
    ),
    broken.InPlace: "InPlace: weight() changed the ratios it was given, which the metrics still need.",
    broken.NoTensor: "NoTensor: weight() returned a float, not a tensor.",
    broken.Scalar: "Scalar: weight() of shape (84,), torch.float32 has shape (), torch.float32. It must be the same.",
    broken.Double: (
        "Double: weight() of shape (84,), torch.float32 has shape (84,), torch.float64. It must be the same."
    ),
    broken.Overflows: "Overflows: the ratio # has weight inf, not finite.",
    broken.Negative: "Negative: the ratio # has weight #, negative.",
    broken.Wanders: "Wanders: weight() of the same ratios gave other weights the second time.",
    broken.Positional: f"Positional: the ratio # has weight #, and # when the ratios are permuted. {ELEMENTWISE}",
    broken.LastDimension: (
        f"LastDimension: the ratio # has weight #, and # when the ratios are reshaped to [12, 7]. {ELEMENTWISE}"
    ),
    broken.MemoryOrder: f"MemoryOrder: the ratio # has weight #, and # when the ratios are transposed. {ELEMENTWISE}",
    broken.Normalized: f"Normalized: the ratio # has weight #, and # when the ratios are sliced. {ELEMENTWISE}",
    broken.NoEmpty: "NoEmpty: weight() of empty ratios has shape (1,), not (0,).",
    broken.PlainTuple: "PlainTuple: correct() returned a tuple, not a Correction.",
    changing(lambda found, *tokens: found._replace(ratios=found.ratios[:1])): (
        "Changes: correct() of shape (10,), torch.float32 gave ratios of shape (1,), torch.float32. "
        "It must be the same."
    ),
    changing(lambda found, *tokens: found._replace(weights=found.weights.double())): (
        "Changes: correct() of shape (10,), torch.float32 gave weights of shape (10,), torch.float64. "
        "It must be the same."
    ),
    changing(lambda found, log_ratio, *tokens: found._replace(ratios=log_ratio.exp())): (
        "Changes: the ratios of correct() are not detached."
    ),
    changing(lambda found, *tokens: found._replace(weights=-found.weights)): (
        "Changes: the weights of correct() must be finite and not negative: [#]."
    ),
    changing(broken.raw_at_untrained): (
        "Changes: the ratios of correct() must be 1 at untrained tokens; got [0.0, 0.0]."
    ),
    changing(lambda found, *tokens: broken.weights_doubled(found, *tokens) if next(COUNTER) % 2 else found): (
        "Changes: correct() of the same tokens gave another result the second time."
    ),
    changing(broken.weights_doubled): (
        "Changes: elementwise is True, but correct() gives other ratios than exp(clamp(log_ratio, -20, 20)), or other "
        "weights than weight() of them."
    ),
    changing(broken.ratios_doubled_at_first): (
        "Changes: elementwise is True, but correct() gives other ratios than exp(clamp(log_ratio, -20, 20)), or other "
        "weights than weight() of them."
    ),
    changing(broken.first_doubled, broken.SequenceChanges): (
        "Changes is a SequenceCorrector, but the weights of one response are [#]. All its trained tokens must have "
        "the same; derive from Corrector if they need not."
    ),
    changing(broken.ratios_doubled_at_first, broken.SequenceChanges): (
        "Changes is a SequenceCorrector, but the ratios of one response are [#]. All its trained tokens must have "
        "the same; derive from Corrector if they need not."
    ),
    broken.SequenceNaN: "SequenceNaN: nan at untrained tokens changed the weights of correct(): [#] instead of [#].",
    broken.SequenceFirst: (
        "SequenceFirst: another order of tokens changed the weights of correct(): [#] instead of [#]."
    ),
    broken.SequenceShared: "SequenceShared: the other responses changed the weights of correct(): [#] instead of [#].",
    broken.ReplacesNan: "ReplacesNan: correct() must raise ValueError for a NaN at a trained token, not replace it.",
    broken.SettingsNoType: "SettingsNoType: settings() must be a dict with a \"type\"; got {'power': 0.5}.",
    broken.SettingsTensor: (
        "SettingsTensor: settings() are not JSON (Object of type Tensor is not JSON serializable): "
        f"{{'type': '{broken.__name__}.SettingsTensor', 'power': tensor(1.)}}."
    ),
    broken.SettingsForget: (
        f"SettingsForget: settings() lack the option(s) power: {{'type': '{broken.__name__}.SettingsForget'}}."
    ),
    broken.SettingsOther: (
        "SettingsOther: make_corrector(settings()) gave SettingsOther(power=3.0), not SettingsOther(power=0.5)."
    ),
}


@pytest.mark.filterwarnings("ignore:.*settings\\(\\) not checked")
@pytest.mark.parametrize("corrector", BROKEN, ids=lambda corrector: corrector.__name__)
def test_broken_promise(corrector):
    with pytest.raises(AssertionError) as caught:
        check_corrector(corrector)
    number = r"-?\d[\d.e+-]*"
    pattern = re.escape(BROKEN[corrector]).replace(r"\[\#\]", r"\[[^\]]*\]").replace(r"\#", number)
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


def test_not_a_corrector():
    with pytest.raises(TypeError, match=r"^corrector=3 is of type int\."):
        check_corrector(3)
    with pytest.raises(ValueError, match=r"did you mean 'icepop'"):
        check_corrector("icepopp")


def test_a_class_that_can_not_be_imported_is_told():
    class Local(broken.Good):
        pass

    message = (
        f"Local: settings() not checked by building it again, since the class can't be imported as '{__name__}."
        "test_a_class_that_can_not_be_imported_is_told.<locals>.Local'. Define it at the top level of a module."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        check_corrector(Local())
