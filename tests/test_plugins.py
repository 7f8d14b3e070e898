"""Settings as text: as they were given, and of the objects made of them."""

from rlhf_algos.corrections import TIS, NoCorrection, SequenceMask, make_corrector
from rlhf_algos.plugins import as_text
from rlhf_algos.routing_replay import R3, make_router_replay
from tests.corrections.test_registry import Power


def test_what_a_user_gives_is_written_as_it_is():
    assert as_text("tis") == "tis"
    assert as_text({"type": "tis"}) == "tis"
    assert as_text({"type": "tis", "high": 3.0}) == "tis(high=3.0)"
    assert as_text({"digits": 2}) == '{"digits": 2}'
    assert as_text([1, None]) == "[1, null]"


def test_an_object_is_written_without_its_defaults():
    assert as_text(NoCorrection()) == "none"
    assert (
        as_text(TIS(high=3.0)) == as_text(make_corrector({"type": "tis", "low": 0.0, "high": 3.0})) == "tis(high=3.0)"
    )
    assert as_text(SequenceMask(aggregate="product")) == "sequence_mask(aggregate=product)"
    assert as_text(Power(0.5)) == "tests.corrections.test_registry.Power(exponent=0.5)"
    assert as_text(R3()) == as_text(make_router_replay("r3")) == "r3"
