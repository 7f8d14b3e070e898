"""Sets of experts compared by hand."""

import pytest
import torch

from rlhf_algos.routing_replay import RouteReplayer, route_mismatch
from tests.routing_replay.models import TOKENS, make_model, next_token_logprobs


def test_sets_are_compared_and_the_order_means_nothing():
    #                         same    reordered  one other   both other   not recorded   in the first layer only
    recorded = torch.tensor([[[0, 1], [0, 1]], [[0, 1], [2, 3]], [[-1, -1], [-1, -1]], [[3, 0], [1, 2]]])
    live = torch.tensor([[[0, 1], [1, 0]], [[0, 2], [0, 1]], [[0, 1], [2, 3]], [[1, 3], [2, 1]]])
    expected = [[False, False], [True, True], [False, False], [True, False]]
    assert route_mismatch(recorded, live).tolist() == expected


def test_the_fraction_over_trained_tokens_and_layers():
    """Three rows predict trained tokens; of their six (token, layer) pairs two differ."""
    recorded = torch.tensor([[0, 1, 2], [3, 4, 5]]).repeat(4, 1, 1)
    live = recorded.flip(-1).clone()
    live[0, 0] = torch.tensor([0, 1, 7])  # not trained
    live[1, 1] = torch.tensor([3, 4, 6])
    live[2, 0] = torch.tensor([5, 6, 7])
    predicting = torch.tensor([1, 2, 3])
    differs = route_mismatch(recorded.to(torch.uint8), live)[predicting]
    assert float(differs.double().mean()) == 2 / 6
    assert differs.double().mean(dim=0).tolist() == [1 / 3, 1 / 3]


@pytest.mark.parametrize("shape", [(4, 2), (4, 3, 2), (3, 2, 2)])
def test_shapes_must_agree(shape):
    with pytest.raises(
        ValueError, match=r"recorded and live must have the same shape \[tokens, layers, experts\]; got"
    ):
        route_mismatch(torch.zeros(shape, dtype=torch.long), torch.zeros(4, 2, 2, dtype=torch.long))


def test_a_model_agrees_with_itself_and_is_measured_without_replay():
    model = make_model()
    replayer = RouteReplayer(model)
    scopes = [replayer.recording(), replayer.recording()]
    for scope in scopes:
        with scope, torch.no_grad():
            next_token_logprobs(model, TOKENS)
    assert not route_mismatch(scopes[0].live_routes, scopes[1].live_routes).any()
    assert not scopes[0].replayed.any()
