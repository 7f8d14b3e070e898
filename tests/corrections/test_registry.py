"""make_corrector: names, dicts, classes, dotted paths, and what each mistake is told."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from rlhf_algos.corrections import (
    CORRECTORS,
    TIS,
    Corrector,
    IcePop,
    ImportanceSampling,
    NoCorrection,
    SequenceMask,
    SequenceTIS,
    make_corrector,
)


@dataclass(frozen=True)
class Power(Corrector):
    """A user's class with an option that has no default."""

    exponent: float

    def weight(self, ratio):
        return ratio.detach() ** self.exponent


class TakesAny(Corrector):
    def __init__(self, **options):
        self.options = options

    def weight(self, ratio):
        return ratio.detach()


NOT_A_CORRECTOR = torch.nn.Linear


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, NoCorrection()),
        ("none", NoCorrection()),
        ("is", ImportanceSampling()),
        ("tis", TIS()),
        ("icepop", IcePop()),
        ("sequence_tis", SequenceTIS()),
        ("sequence_mask", SequenceMask()),
        ({"type": "tis", "high": 3.0}, TIS(high=3.0)),
        (MappingProxyType({"type": "icepop", "low": 0.1}), IcePop(low=0.1)),
        (IcePop, IcePop()),
        ({"type": IcePop, "high": 3.0}, IcePop(high=3.0)),
        ("rlhf_algos.corrections.TIS", TIS()),
        ({"type": "rlhf_algos.corrections.token_wise.TIS", "low": 0.5}, TIS(low=0.5)),
        ({"type": f"{__name__}.Power", "exponent": 0.5}, Power(0.5)),
    ],
    ids=str,
)
def test_specs(spec, expected):
    assert make_corrector(spec) == expected


def test_an_instance_is_returned_as_it_is_and_a_dict_is_not_changed():
    corrector = TIS(high=7.0)
    assert make_corrector(corrector) is corrector
    spec = {"type": "tis", "high": 3.0}
    make_corrector(spec)
    assert spec == {"type": "tis", "high": 3.0}
    assert make_corrector() == NoCorrection()


def test_each_class_knows_its_name():
    assert {name: cls.registered_name for name, cls in CORRECTORS.items()} == {name: name for name in CORRECTORS}
    for cls in CORRECTORS.values():
        assert make_corrector(cls().settings()) == cls()


def test_keyword_options_of_any_name_are_passed_on():
    assert make_corrector({"type": TakesAny, "anything": 3}).options == {"anything": 3}


NAMES = "Names: none, is, tis, icepop, sequence_tis, sequence_mask."
OWN = 'A class of your own is named by its dotted path, "package.module.ClassName".'


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("tiss", ValueError, f"corrector='tiss' is unknown (did you mean 'tis'?). {NAMES} {OWN}"),
        ("IcePop", ValueError, f"corrector='IcePop' is unknown (did you mean 'icepop'?). {NAMES} {OWN}"),
        ("xyz", ValueError, f"corrector='xyz' is unknown. {NAMES} {OWN}"),
        ("", ValueError, f"corrector='' is unknown. {NAMES} {OWN}"),
        ("..TIS", ValueError, f"corrector='..TIS' is unknown (did you mean 'tis'?). {NAMES} {OWN}"),
        ({"type": "ices"}, ValueError, f"corrector='ices' is unknown (did you mean 'is'?). {NAMES} {OWN}"),
        (
            {"high": 3.0},
            ValueError,
            'corrector={\'high\': 3.0} has no "type". Give {"type": name, option: value, ...}.',
        ),
        (
            {"type": "tis", "hihg": 3.0},
            ValueError,
            "TIS has no option 'hihg' (did you mean 'high'?); got {'hihg': 3.0}. Options: low, high.",
        ),
        (
            {"type": "none", "high": 3.0},
            ValueError,
            "NoCorrection has no option 'high'; got {'high': 3.0}. It has no options.",
        ),
        (
            {"type": "tis", 3: 1.0},
            ValueError,
            "TIS has no option 3; got {3: 1.0}. Options: low, high.",
        ),
        (
            Power,
            ValueError,
            "Power needs the option(s) exponent: give an instance, or a dict that has them.",
        ),
        (
            "no_such_package.module.Mine",
            ImportError,
            "corrector='no_such_package.module.Mine' can't be imported: No module named 'no_such_package'. Install "
            "its package, or put its folder on PYTHONPATH, for every process that trains.",
        ),
        (
            "rlhf_algos.corrections.IcePoop",
            ImportError,
            "corrector='rlhf_algos.corrections.IcePoop': rlhf_algos.corrections has no 'IcePoop' (did you mean "
            "'IcePop'?).",
        ),
        (
            f"{__name__}.NOT_A_CORRECTOR",
            TypeError,
            f"corrector='{__name__}.NOT_A_CORRECTOR' is <class 'torch.nn.modules.linear.Linear'>, which is not a "
            "subclass of rlhf_algos.corrections.Corrector.",
        ),
        (
            f"{__name__}.NAMES",
            TypeError,
            f"corrector='{__name__}.NAMES' is {NAMES!r}, which is not a subclass of rlhf_algos.corrections.Corrector.",
        ),
        (
            int,
            TypeError,
            "corrector=<class 'int'> is <class 'int'>, which is not a subclass of rlhf_algos.corrections.Corrector.",
        ),
        (
            "rlhf_algos.corrections.Corrector",
            TypeError,
            "corrector='rlhf_algos.corrections.Corrector' is abstract: use a subclass of it that has weight().",
        ),
        (
            "rlhf_algos.corrections.SequenceCorrector",
            TypeError,
            "corrector='rlhf_algos.corrections.SequenceCorrector' is abstract: use a subclass of it that has "
            "sequence_weight().",
        ),
        (
            3,
            TypeError,
            "corrector=3 is of type int. Give a Corrector, a name, a dotted path, a class, None, or "
            '{"type": name, option: value, ...}.',
        ),
        (
            {"type": None},
            TypeError,
            "corrector=None is of type NoneType. Give a Corrector, a name, a dotted path, a class, None, or "
            '{"type": name, option: value, ...}.',
        ),
    ],
    ids=str,
)
def test_mistakes(spec, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make_corrector(spec)


def test_a_failing_import_inside_the_users_module_is_told(tmp_path, monkeypatch):
    (tmp_path / "my_broken_corrector.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="No module named 'a_package_that_is_missing'") as caught:
        make_corrector("my_broken_corrector.Mine")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_the_documentation_names_every_corrector_with_its_defaults():  # and which mean a sequence-level one takes
    page = (Path(__file__).parents[2] / "docs/corrections.md").read_text()
    for name, cls in CORRECTORS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f'| `"{name}"` |')]
        assert f"`{cls.__name__}`" in row
        settings = cls().settings()
        if "low" in settings:
            assert f"low {settings['low']:g}, high {settings['high']:g}" in row
        if "aggregate" in settings:
            assert f"{settings['aggregate']}, no veto" in row
    for metric in ("tis", "tis_abs", "tis_clipfrac", "tis_weight", "tis_zero_fraction"):
        assert f"| `{metric}` |" in page
