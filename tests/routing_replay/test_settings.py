"""`make_router_replay`, and what each kind of replay declares."""

import json
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import pytest
import torch

from rlhf_algos.routing_replay import R2, R3, NoReplay, RouterReplay, make_router_replay


@dataclass(frozen=True)
class UpperLayers(R3):
    first_layer: int = 1

    def select(self, routes):
        selected = routes.clone()
        selected[:, : self.first_layer] = -1
        return selected


@dataclass(frozen=True)
class FromBoth(R3):
    records_in_old_policy_pass: ClassVar[bool] = True


PATH = f"{__name__}.UpperLayers"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, NoReplay()),
        ("none", NoReplay()),
        ("r2", R2()),
        ("r3", R3()),
        (R3, R3()),
        (R2(), R2()),
        ({"type": "r3"}, R3()),
        ({"type": R2}, R2()),
        (UpperLayers(3), UpperLayers(3)),
        (PATH, UpperLayers(1)),
        ({"type": PATH, "first_layer": 2}, UpperLayers(2)),
    ],
)
def test_every_kind_of_spec(spec, expected):
    made = make_router_replay(spec)
    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize("replay", [NoReplay(), R2(), R3(), UpperLayers(7)])
def test_settings_make_an_equal_instance(replay):
    assert make_router_replay(json.loads(json.dumps(replay.settings()))) == replay


def test_settings_are_plain():
    assert R3().settings() == {"type": "r3"}
    assert NoReplay().settings() == {"type": "none"}
    assert UpperLayers(2).settings() == {"type": PATH, "first_layer": 2}


def test_what_each_kind_needs():
    declared = {
        type(r): (r.uses_rollout_routes, r.records_in_old_policy_pass, r.replays) for r in (NoReplay(), R2(), R3())
    }
    assert declared == {NoReplay: (False, False, False), R2: (False, True, True), R3: (True, False, True)}


def test_what_is_replayed_can_be_chosen():
    routes = torch.tensor([[[0, 1], [2, 3]]])
    assert R3().select(routes) is routes
    assert UpperLayers(1).select(routes).tolist() == [[[-1, -1], [2, 3]]]


def test_instances_are_frozen():
    with pytest.raises(FrozenInstanceError):
        UpperLayers().first_layer = 3


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            "R3",
            ValueError,
            r"^router_replay='R3' is unknown \(did you mean 'r3'\?\)\. Names: none, r2, r3\.",
        ),
        ("nnoe", ValueError, "did you mean 'none'?"),
        ("something", ValueError, r"router_replay='something' is unknown\. Names:"),
        ({"first_layer": 2}, ValueError, r'has no "type"\. Give {"type": name, option: value, ...}'),
        ({"type": "r3", "layers": 2}, ValueError, r"R3 has no option 'layers'; .* It has no options"),
        ({"type": PATH, "first_layers": 2}, ValueError, "did you mean 'first_layer'?"),
        ("no_such_module.Replay", ImportError, "'no_such_module.Replay' can't be imported: No module named"),
        (f"{__name__}.Missing", ImportError, "router_replay='.*Missing': .* has no 'Missing'"),
        ("json.JSONDecoder", TypeError, "not a subclass of rlhf_algos.routing_replay.RouterReplay"),
        (True, TypeError, r"router_replay=True is of type bool\. Give a RouterReplay"),
        (dict, TypeError, "which is not a subclass of rlhf_algos.routing_replay.RouterReplay"),
        (FromBoth, ValueError, "FromBoth sets both uses_rollout_routes and records_in_old_policy_pass"),
        (FromBoth(), ValueError, "the routes of one origin"),
    ],
)
def test_what_is_refused(spec, error, message):
    with pytest.raises(error, match=message):
        make_router_replay(spec)


def test_the_base_class_replays_nothing():
    assert not RouterReplay().replays
