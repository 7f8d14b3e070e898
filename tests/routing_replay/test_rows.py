"""Which row of routes belongs to which token."""

import numpy as np
import pytest
import torch

from rlhf_algos.learner.packed_attention import attention_for
from rlhf_algos.learner.packing import plan_micro_batches
from rlhf_algos.routing_replay import (
    RouteReplayer,
    join_routes,
    moe_layer_routes,
    moe_layers,
    packed_routes,
    route_dtype,
)
from tests.routing_replay.batches import logprobs_by_sample, make_batch
from tests.routing_replay.models import (
    ARCHITECTURES,
    SIZES,
    make_model,
    replayed_logprobs,
    routes_for,
)


def rows(*values):
    """`[n, 1, 2]` uint8 routes; each value stands for one row."""
    return np.array([[[value, value + 1]] for value in values], dtype=np.uint8)


def values(routes):
    return [int(row[0, 0]) for row in routes]


# ---- one row fewer than there are tokens --------------------------------------------------------------------------


def test_rows_keep_their_index_and_the_last_one_is_missing():
    """prompt 3 + response 4: six rows"""
    batch = make_batch([[5, 9, 3]], [[7, 30, 1, 12]], rows(10, 11, 12, 13, 14, 15))
    assert values(packed_routes(batch)) == [10, 11, 12, 13, 14, 15, -1]


def test_rows_of_several_samples():
    """Samples of 3, 1 and 2 tokens: a a a | b | c c"""
    batch = make_batch([[1, 2], [3], [4]], [[5], [], [6]], rows(10, 11, 30))
    packed = packed_routes(batch)
    assert packed.dtype == torch.int64
    assert values(packed) == [10, 11, -1, -1, 30, -1]


def test_the_last_row_does_not_matter_and_a_shift_does():
    model = make_model()
    replayer = RouteReplayer(model)
    tokens = torch.tensor([[5, 9, 3, 7, 30, 1, 12]])
    routes = routes_for("qwen3_moe", 7)
    expected = replayed_logprobs(model, replayer, tokens, routes)
    for last in ([0, 1], [2, 3], [-1, -1]):
        changed = routes.clone()
        changed[6] = torch.tensor(last)
        assert torch.equal(replayed_logprobs(model, replayer, tokens, changed), expected)
    shifted = replayed_logprobs(model, replayer, tokens, routes.roll(1, dims=0))
    assert float((shifted - expected).detach().abs().max()) > 0.05


def test_a_later_turn_fills_what_the_earlier_one_lacked():
    """Turn 1: prompt 3, response 2. Turn 2: prompt 7 (5 old + 2 of a tool), response 2."""
    first, second = rows(10, 11, 12, 13), rows(20, 21, 22, 23, 24, 25, 26, 27)
    joined = join_routes([first, second])
    assert values(joined) == [10, 11, 12, 13, 24, 25, 26, 27]


def test_three_turns():
    assert values(join_routes([rows(1), rows(2, 3, 4), rows(5, 6, 7, 8)])) == [1, 3, 4, 8]


# ---- resume and truncation ----------------------------------------------------------------------------------------

A, B = 100, 200


def test_a_resumed_response_keeps_the_routes_its_first_tokens_were_sampled_with():
    """Leg 1: prompt 3 + 2 tokens. Leg 2: these 5 as input + 3 new."""
    joined = join_routes([rows(A, A, A, A), rows(B, B, B, B, B, B, B)])
    assert joined.dtype == np.uint8
    batch = make_batch([[1, 2, 3]], [[4, 5, 6, 7, 8]], joined)
    assert values(packed_routes(batch)) == [A, A, A, A, B, B, B, -1]


@pytest.mark.parametrize(
    ("legs", "message"),
    [
        ([], "join_routes needs the routes of at least one request"),
        ([rows(1, 2, 3), rows(1, 2)], "request 2 cover 2 positions, fewer than the 3 before it"),
        (
            [rows(1), rows(1, 2).astype(np.uint16)],
            r"request 2 have rows \(1, 2\) of uint16, those before \(1, 2\) of uint8",
        ),
        ([rows(1), np.zeros((2, 2, 2), np.uint8)], r"request 2 have rows \(2, 2\)"),
        ([rows(1)[0]], r"shape \[positions, layers, experts\], got \(1, 2\)"),
    ],
)
def test_legs_that_do_not_fit(legs, message):
    with pytest.raises(ValueError, match=message):
        join_routes(legs)


# ---- routes follow their sample -----------------------------------------------------------------------------------

SAMPLE_ROUTES = {"A": [(0, 1), (1, 2), (2, 3)], "B": [(3, 0), (0, 2), (1, 3)]}


def test_a_micro_batch_of_two_equals_two_of_one():
    """Three tokens each, the same pair of experts in every layer; a padded batch, batch first."""
    model = make_model()
    replayer = RouteReplayer(model)
    tokens = torch.tensor([[5, 9, 3], [2, 8, 1]])
    routes = torch.tensor([SAMPLE_ROUTES["A"], SAMPLE_ROUTES["B"]])[:, :, None].expand(2, 3, 2, 2)
    together = replayed_logprobs(model, replayer, tokens, routes.flatten(0, 1))
    for sample in range(2):
        alone = replayed_logprobs(model, replayer, tokens[sample : sample + 1], routes[sample])
        assert float((together[sample] - alone[0]).detach().abs().max()) < 1e-5


def a_batch(architecture):
    """Five samples of different lengths, one without a response."""
    prompts = [[5, 9, 3], [2, 8], [1], [30, 31, 6, 7], [11, 12]]
    responses = [[7, 30], [1, 4, 19, 22], [3, 2, 9], [], [17]]
    count = sum(map(len, prompts)) + sum(map(len, responses)) - len(prompts)
    return make_batch(prompts, responses, routes_for(architecture, count).numpy())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packing_sorting_shuffling_and_splitting(architecture):
    batch = a_batch(architecture)
    # The unpacked model, sample by sample, is what packing has to reproduce.
    unpacked = make_model(architecture)
    replayer = RouteReplayer(unpacked)
    alone = {}
    for index, sample in enumerate(batch.sample_ids.tolist()):
        part = batch.select([index])
        ids = torch.from_numpy(np.concatenate([part.prompt_ids, part.response_ids]))[None]
        logprobs = replayed_logprobs(unpacked, replayer, ids, packed_routes(part))
        alone[sample] = logprobs[0, len(part.prompt_ids) - 1 :].detach()

    model = make_model(architecture)
    model.set_attn_implementation(attention_for(model.config))
    replayer = RouteReplayer(model)

    lengths = batch.prompt_lengths + batch.response_lengths
    shuffled = np.random.default_rng(0).permutation(batch.num_samples)
    arrangements = {
        "packed": [batch],
        "sorted": [batch.select(np.argsort(lengths))],
        "shuffled": [batch.select(shuffled)],
        "split over two learners": [
            batch.select(indices)
            for rank in plan_micro_batches(lengths, num_ranks=2, token_budget=8)
            for indices in rank
            if indices
        ],
        "concatenated": [type(batch).concatenate([batch.select([4, 2]), batch.select([0, 1, 3])])],
    }
    assert len(arrangements["split over two learners"]) > 2
    for name, parts in arrangements.items():
        found = {}
        for part in parts:
            found |= logprobs_by_sample(model, replayer, part)
        assert found.keys() == alone.keys()
        for sample, expected in alone.items():
            torch.testing.assert_close(found[sample], expected, atol=1e-5, rtol=0, msg=f"{name}, sample {sample}")


def test_saved_and_loaded_batches_have_the_same_routes(tmp_path):
    batch = a_batch("qwen3_moe")
    loaded = type(batch).load(batch.save(tmp_path / "batch.safetensors"))
    assert torch.equal(packed_routes(loaded), packed_routes(batch))


# ---- tokens without a route ---------------------------------------------------------------------------------------


def test_a_batch_without_routes():
    with pytest.raises(ValueError, match=r"no routes, but .* \(first sample with trained tokens: 101\)"):
        packed_routes(make_batch([[1], [1]], [[], [2]], None))


def test_a_row_that_was_never_written():
    """Samples of 3, 1, 4 tokens; position 2 of the third, its first response token, is zeros in the second layer."""
    routes = routes_for("qwen3_moe", 5).numpy().astype(np.uint8)
    routes[4, 1] = 0
    batch = make_batch([[1, 2], [3], [4, 5]], [[6], [], [7, 8]], routes)
    with pytest.raises(
        ValueError,
        match=r"Sample 102 has no valid route at position 2 \(response token 0\), layer 1: experts \[0, 0\]\. The",
    ):
        packed_routes(batch)


def test_an_expert_that_does_not_exist():
    routes = routes_for("qwen3_moe", 2).numpy().astype(np.uint8)
    routes[0, 0] = [3, 4]
    batch = make_batch([[1, 2]], [[6]], routes)
    packed_routes(batch)
    message = r"Sample 100 has no valid route at position 0 \(in the prompt\), layer 0: experts \[3, 4\] of 4"
    with pytest.raises(ValueError, match=message):
        packed_routes(batch, num_experts=4)


# ---- layers and dtypes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_with_a_router_from_the_configuration(architecture):
    assert moe_layers(make_model(architecture).config) == SIZES[architecture][3]


def test_dense_layers_are_left_out():
    """Three decoder layers, the first dense: vLLM leaves its column 0."""
    engine = np.zeros((4, 3, 2), dtype=np.uint8)
    engine[:, 1] = [0, 1]
    engine[:, 2] = [2, 3]
    kept = moe_layer_routes(engine, (1, 2), 3)
    assert kept.dtype == np.uint8
    assert kept[0].tolist() == [[0, 1], [2, 3]]
    assert moe_layer_routes(kept, (1, 2), 3) is kept


def test_an_engine_with_other_layers():
    with pytest.raises(ValueError, match=r"shape \(4, 5, 2\); expected .* 3 decoder layers or 2 mixture-of-experts"):
        moe_layer_routes(np.zeros((4, 5, 2), np.uint8), (1, 2), 3)
    engine = np.zeros((4, 3, 2), dtype=np.uint8)
    engine[2, 0] = [0, 1]
    with pytest.raises(ValueError, match=r"decoder layer 0, which is dense in the trainer's model \(.* \[1, 2\]\)"):
        moe_layer_routes(engine, (1, 2), 3)


def test_dtypes():
    assert [route_dtype(count) for count in (1, 256, 257, 65536)] == [np.uint8, np.uint8, np.uint16, np.uint16]
    with pytest.raises(ValueError, match=r"num_experts must lie in \[1, 65536\], got 65537"):
        route_dtype(65537)
