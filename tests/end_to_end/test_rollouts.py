"""What rollout actors record, through the real engine."""

import numpy as np
import pytest

from rlhf_algos.batch import FINISH_LENGTH, FINISH_STOP
from rlhf_algos.driver.calls import on_env_runners


def call(group, function, **kwargs):
    """Calls `function(runner, **kwargs)` on the first actor."""
    actor = group.healthy_env_runner_ids()[0]
    return on_env_runners(group, function, actors=[actor], kwargs_by_actor={actor: kwargs})[actor]


@pytest.fixture(scope="module")
def recorded(actors_for):
    """Four groups with heads and routes, sampled from weights that were never replaced."""
    group = actors_for("untied", record_head=128)

    def sample(runner):
        runner.use_loaded_weights()
        return runner.sample_groups([3, 1, 2, 0], weight_version=0)[0]

    return call(group, sample)


def test_head_holds_the_most_probable_tokens_and_the_sampled_one(recorded):
    assert recorded.head_ids.shape == (recorded.num_response_tokens, 128)
    assert (np.diff(recorded.head_logprobs, axis=1) <= 0).all()
    mass = np.exp(recorded.head_logprobs.astype(np.float64)).sum(axis=1)
    assert (mass <= 1 + 1e-4).all() and (mass > 0.5).all()
    inside = recorded.head_ids == recorded.response_ids[:, None]
    rows = inside.any(axis=1)
    assert rows.any()
    # A sampled token outside the head is no more probable than the head's last.
    assert (recorded.rollout_logprobs[~rows] <= recorded.head_logprobs[~rows, -1]).all()
    # The recorded log q is the sampled token's, not the first entry's.
    assert np.array_equal(recorded.head_logprobs[inside], recorded.rollout_logprobs[rows])


def test_routes_cover_every_position_but_the_last(recorded):
    positions = int((recorded.prompt_lengths + recorded.response_lengths - 1).sum())
    assert recorded.routes.shape == (positions, 2, 2)
    assert recorded.routes.dtype == np.uint8
    assert recorded.routes.max() < 8
    assert (recorded.routes[..., 0] != recorded.routes[..., 1]).all()


def test_groups_keep_their_order_prompt_and_reward(recorded):
    """Responses finish in any order; each stays with its own prompt and group."""
    assert recorded.group_ids.tolist() == [3] * 4 + [1] * 4 + [2] * 4 + [0] * 4
    assert recorded.sample_ids.tolist() == [12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3]
    prompts = np.split(recorded.prompt_ids, np.cumsum(recorded.prompt_lengths)[:-1])
    for start in range(0, 16, 4):
        assert all(np.array_equal(prompts[start], prompts[start + i]) for i in range(4))
    assert not np.array_equal(prompts[0], prompts[4])
    assert set(recorded.finish_reasons.tolist()) <= {FINISH_STOP, FINISH_LENGTH}


def test_members_of_a_group_get_different_noise(recorded):
    responses = np.split(recorded.response_ids, np.cumsum(recorded.response_lengths)[:-1])
    assert len({tuple(response) for response in responses}) == len(responses)


def test_every_end_id_of_the_generation_config_ends_a_response(actors_for):
    """The model's config names ids 1 and 2; a response that met neither is truncated, not terminated."""

    def sample(runner):
        runner.use_loaded_weights()
        return runner.sample_groups(list(range(40)), weight_version=0)[0]

    batch = call(actors_for("untied"), sample)
    responses = np.split(batch.response_ids, np.cumsum(batch.response_lengths)[:-1])
    ends = {int(r[-1]) for r, reason in zip(responses, batch.finish_reasons, strict=True) if reason == FINISH_STOP}
    assert ends == {1, 2}
    for response, reason in zip(responses, batch.finish_reasons, strict=True):
        assert not set(response[:-1].tolist()) & {1, 2}
        if reason == FINISH_LENGTH:
            assert len(response) == 12 and response[-1] not in (1, 2)
    # The token that ends a response is trained on, whatever the padding id is.
    assert batch.loss_mask.all()
