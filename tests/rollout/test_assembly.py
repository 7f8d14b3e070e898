"""From generations to arrays: exact alignment, and every missing piece an error."""

import numpy as np
import pytest

from rlhf_algos.batch import FINISH_LENGTH, FINISH_STOP, SampledWith
from rlhf_algos.rollout.assembly import ScoredResponse, assemble
from rlhf_algos.rollout.engine import Generation
from rlhf_algos.rollout.router_layout import RouterLayout
from rlhf_algos.rollout.sampling import SamplingSettings, request_seed
from rlhf_algos.rollout.vllm_engine import require_sampled

SAID = SampledWith(model="a", temperature=1.0, top_p=1.0, top_k=0)


def response(sample, prompt, tokens, *, finish="stop", reward=1.0, routes=None, head=None, logprobs=None):
    generation = Generation(
        prompt_ids=prompt,
        token_ids=tokens,
        logprobs=[-0.1 * (i + 1) for i in range(len(tokens))] if logprobs is None else logprobs,
        finish_reason=finish,
    )
    if routes is not None:
        generation.route_rows = routes
    if head is not None:
        generation.head_ids, generation.head_logprobs = head
    return ScoredResponse(sample, sample // 2, generation, reward, weight_version=3)


def test_arrays_stand_sample_by_sample():
    batch = assemble(
        [response(1, [9, 8], [5, 2]), response(0, [7], [5, 6, 8], finish="length", reward=0.0)],
        SamplingSettings(),
        router=None,
        settings=SAID,
    )
    assert batch.sample_ids.tolist() == [1, 0]
    assert batch.prompt_ids.tolist() == [9, 8, 7]
    assert batch.response_ids.tolist() == [5, 2, 5, 6, 8]
    assert batch.response_lengths.tolist() == [2, 3]
    assert batch.rollout_logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.1, -0.2, -0.3])
    assert batch.finish_reasons.tolist() == [FINISH_STOP, FINISH_LENGTH]
    assert batch.weight_versions.tolist() == [3] * 5
    # The end token (2, which might be the padding id too) is trained like any other.
    assert batch.loss_mask.tolist() == [True] * 5
    assert batch.head_ids is None and batch.routes is None
    assert batch.settings is SAID


def test_routes_are_joined_by_position():
    rows = [np.full((2, 1, 2), 4, np.uint8), np.full((1, 1, 2), 5, np.uint8)]
    batch = assemble(
        [response(0, [7, 7], [5, 6], routes=rows)],
        SamplingSettings(record_routes=True),
        router=RouterLayout((0,), 1, 8),
        settings=None,
    )
    assert batch.routes[:, 0, 0].tolist() == [4, 4, 5]


def test_a_missing_route_is_an_error():
    rows = [np.zeros((2, 1, 2), np.uint8)]
    with pytest.raises(RuntimeError, match="Sample 0: vLLM returned routes of 2 positions, expected 3"):
        assemble(
            [response(0, [7, 7], [5, 6], routes=rows)],
            SamplingSettings(record_routes=True),
            router=RouterLayout((0,), 1, 8),
            settings=None,
        )


def test_a_missing_logprob_is_an_error():
    with pytest.raises(RuntimeError, match="Sample 4: vLLM returned 1 log-probabilities for 2 tokens"):
        assemble([response(4, [7], [5, 6], logprobs=[-1.0])], SamplingSettings(), router=None, settings=None)


def test_nan_names_sample_and_token():
    with pytest.raises(RuntimeError, match="Sample 4: vLLM returned log-probability nan for token 2 .id 5."):
        assemble(
            [response(4, [7], [11, 7, 5], logprobs=[-0.42, -4.2, float("nan")])],
            SamplingSettings(),
            router=None,
            settings=None,
        )


@pytest.mark.parametrize(
    "head_logprobs, sampled, fault",
    [
        ([-0.1, -0.2], -0.1, r"the recorded probabilities add up to 1.7235\d+, above 1"),
        ([-2.3, -0.2], -2.3, r"the recorded head is not sorted"),
        ([np.nan, -0.2], -0.2, r"the recorded distribution holds NaN"),
        # Raw log-probabilities, or those of another temperature: the same token with two numbers.
        ([-0.7, -1.2], -0.6, r"its own log q differs from the one in the recorded distribution"),
        # The head's ids are 5 and 6; token 8 must be less likely than both.
        ([-1.0, -1.2], None, r"it is likelier than the head's last entry but not in the head"),
    ],
)
def test_a_head_that_is_not_the_sampled_distribution_is_an_error(head_logprobs, sampled, fault):
    token, logprob = (5, sampled) if sampled is not None else (8, -1.1)
    good = response(3, [7], [5], head=([np.array([5, 6])], [np.array([-0.7, -1.2])]), logprobs=[-0.7])
    bad = response(4, [7], [token], head=([np.array([5, 6])], [np.array(head_logprobs)]), logprobs=[logprob])
    settings = SamplingSettings(record_head=2)
    with pytest.raises(RuntimeError, match=rf"Sample 4, token 0 \(id {token}\): {fault}"):
        assemble([good, bad], settings, router=None, settings=None)
    assert assemble([good], settings, router=None, settings=None).head_ids.tolist() == [[5, 6]]


def test_support_of_truncated_sampling_is_what_has_probability():
    head = (
        [np.array([5, 6, 9]), np.array([6, 1, 2])],
        [np.array([np.log(0.9), np.log(0.1), -np.inf]), np.array([0.0, -np.inf, -np.inf])],
    )
    sampled = response(0, [7], [5, 6], head=head, logprobs=[float(np.log(0.9)), 0.0])
    batch = assemble([sampled], SamplingSettings(top_k=3), router=None, settings=None)
    assert batch.support_lengths.tolist() == [2, 1]
    assert batch.support_ids.tolist() == [5, 6, 6]
    assert batch.support_logprobs.tolist() == pytest.approx(np.log([0.9, 0.1, 1.0]).tolist(), abs=1e-6)
    assert batch.head_ids is None


@pytest.mark.parametrize(
    "ids, probabilities, fault",
    [
        ([5, 6], [0.5, 0.4], r"the support's probabilities add up to 0.900000 only"),
        ([6, 9], [0.6, 0.4], r"it is missing from the support that it was sampled from"),
    ],
)
def test_a_support_that_was_not_sampled_from_is_an_error(ids, probabilities, fault):
    head = ([np.array(ids)], [np.log(probabilities)])
    sampled = response(4, [7], [5], head=head, logprobs=[float(np.log(0.5))])
    with pytest.raises(RuntimeError, match=rf"Sample 4, token 0 \(id 5\): {fault}"):
        assemble([sampled], SamplingSettings(top_k=3), router=None, settings=None)


def test_records_of_another_token_are_refused():
    with pytest.raises(RuntimeError, match=r"record of request a is for tokens \[13\], but it sampled \[7\]"):
        require_sampled("a", [7], np.array([13]))


def test_seeds_differ_by_run_purpose_and_sample():
    seeds = {request_seed(seed, purpose, sample) for seed in range(3) for purpose in range(3) for sample in range(100)}
    assert len(seeds) == 900
    assert request_seed(0, 1, 2) == request_seed(0, 1, 2)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"record_head": 8, "top_p": 0.9},
            r"sampling\(record_head=8\) records the head of the full distribution",
        ),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SamplingSettings(**options)
