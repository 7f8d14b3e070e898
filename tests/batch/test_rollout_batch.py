"""The batch: contradictions are errors, selection keeps tokens with their sample, files come back exactly."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from rlhf_algos.batch import RolloutBatch, SampledWith, read_header
from tests.learner.conftest import make_batch

SAID = SampledWith(model="tiny", temperature=1.0, top_p=1.0, top_k=0, environment="客")


def full_batch(lengths, seed=0) -> RolloutBatch:
    """With every optional field."""
    batch = make_batch(lengths, seed=seed)
    tokens, rng = batch.num_response_tokens, np.random.default_rng(seed)
    support_lengths = rng.integers(1, 4, tokens)
    return dataclasses.replace(
        batch,
        head_ids=rng.integers(0, 99, (tokens, 3)).astype(np.int32),
        head_logprobs=rng.normal(size=(tokens, 3)).astype(np.float32),
        support_lengths=support_lengths,
        support_ids=rng.integers(0, 99, int(support_lengths.sum())).astype(np.int32),
        support_logprobs=rng.normal(size=int(support_lengths.sum())).astype(np.float32),
        routes=rng.integers(0, 8, (len(batch.prompt_ids) + tokens - batch.num_samples, 2, 2)).astype(np.uint8),
        settings=SAID,
    )


def equal(first: RolloutBatch, second: RolloutBatch) -> bool:
    for field in dataclasses.fields(RolloutBatch):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            if a is None or b is None or a.dtype != b.dtype or not np.array_equal(a, b):
                return False
        elif a != b:
            return False
    return True


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6), data=st.data())
def test_selecting_and_concatenating_are_inverse(lengths, data):
    batch = full_batch(lengths)
    order = data.draw(st.permutations(range(len(lengths))))
    parts = [batch.select([i]) for i in order]
    shuffled = RolloutBatch.concatenate(parts)
    assert equal(shuffled, batch.select(order))
    back = np.argsort(order)
    assert equal(shuffled.select(back), batch)


def test_tokens_stay_with_their_sample():
    batch = full_batch([2, 0, 3])
    picked = batch.select([2, 0])
    assert picked.response_ids.tolist() == [*batch.response_ids[2:5], *batch.response_ids[:2]]
    assert picked.prompt_ids.tolist() == [*batch.prompt_ids[11:18], *batch.prompt_ids[:5]]
    # Routes: 5 + 2 - 1 = 6 rows, then 6 + 0 - 1 = 5, then 7 + 3 - 1 = 9.
    assert np.array_equal(picked.routes, np.concatenate([batch.routes[11:20], batch.routes[:6]]))


def test_files_come_back_exactly(tmp_path):
    batch = full_batch([2, 0, 3])
    path = batch.save(tmp_path / "batch.safetensors")
    assert equal(RolloutBatch.load(path), batch)
    plain = make_batch([1, 2])
    assert equal(RolloutBatch.load(plain.save(tmp_path / "plain.safetensors")), plain)


def test_bad_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    path = full_batch([2, 3]).save(tmp_path / "batch.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        RolloutBatch.load(cut)
    other = tmp_path / "other.safetensors"
    save_file({"a": np.zeros(2)}, other)
    with pytest.raises(ValueError, match="not a RolloutBatch"):
        RolloutBatch.load(other)
    later = tmp_path / "later.safetensors"
    header = {"format": "rlhf_algos.RolloutBatch", "format_version": "99", "settings": "{}"}
    save_file({"a": np.zeros(2)}, later, metadata=header)
    with pytest.raises(ValueError, match="format version 99"):
        RolloutBatch.load(later)


def test_files_of_the_version_with_float32_rewards_are_refused(tmp_path):
    from safetensors.numpy import save_file

    older = tmp_path / "older.safetensors"
    save_file({"a": np.zeros(2)}, older, metadata={"format": "rlhf_algos.RolloutBatch", "format_version": "2"})
    with pytest.raises(ValueError, match=r"format version 2, this library reads version 3 .*float32.*sample the batch"):
        RolloutBatch.load(older)


@pytest.mark.parametrize("lost", ["format_version", "settings", "content_hash"])
def test_an_incomplete_header_is_refused(tmp_path, lost):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    path = full_batch([2, 3]).save(tmp_path / "batch.safetensors")
    with safe_open(str(path), framework="numpy") as file:
        header, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(arrays, path, metadata={name: value for name, value in header.items() if name != lost})
    with pytest.raises(ValueError, match=r"batch\.safetensors has .*(format version None|header)"):
        RolloutBatch.load(path)


def test_rewards_keep_their_digits(tmp_path):
    batch = dataclasses.replace(make_batch([2, 3]), rewards=np.array([16777216.0, 16777217.0]))
    shuffled = RolloutBatch.concatenate([batch.select([1]), batch.select([0])])
    assert RolloutBatch.load(shuffled.save(tmp_path / "b")).rewards.tolist() == [16777217.0, 16777216.0]


def test_a_header_says_who_wrote_the_file(tmp_path):
    batch = full_batch([2, 3])
    assert read_header(batch.save(tmp_path / "plain")).origin is None
    path = batch.save(tmp_path / "named", origin={"run": "a", "seed": 0})
    header = read_header(path)
    assert header.origin == {"run": "a", "seed": 0}
    assert header.settings == batch.settings and header.content_hash == batch.content_hash
    assert equal(RolloutBatch.load(path), batch)


def test_a_changed_file_is_noticed(tmp_path):
    """One reward exchanged in the file, everything else as it was saved."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    path = full_batch([2, 3]).save(tmp_path / "batch.safetensors")
    with safe_open(str(path), framework="numpy") as file:
        header, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    arrays["rewards"] = arrays["rewards"][::-1].copy()
    save_file(arrays, path, metadata=header)
    with pytest.raises(ValueError, match="changed after it was saved"):
        RolloutBatch.load(path)


def test_the_hash_is_that_of_the_content():
    batch = full_batch([2, 3])
    assert batch.content_hash == full_batch([2, 3]).content_hash
    assert (
        dataclasses.replace(batch, settings=dataclasses.replace(SAID, temperature=0.5)).content_hash
        != batch.content_hash
    )
    changed = batch.rollout_logprobs.copy()
    changed[-1] += 1e-6
    assert dataclasses.replace(batch, rollout_logprobs=changed).content_hash != batch.content_hash


def golden_batch(settings) -> RolloutBatch:
    """Every field, written out; of the second sample nobody knows the reward."""
    return RolloutBatch(
        sample_ids=np.array([3, 1]),
        group_ids=np.array([1, 0]),
        prompt_lengths=np.array([2, 1]),
        response_lengths=np.array([1, 2]),
        rewards=np.array([0.5, np.nan]),
        finish_reasons=np.array([0, 1], np.uint8),
        prompt_ids=np.array([9, 8, 7]),
        response_ids=np.array([5, 6, 8]),
        loss_mask=np.array([True, False, False]),
        rollout_logprobs=np.array([-0.5, -0.25, -1.5], np.float32),
        weight_versions=np.array([4, 4, 5]),
        head_ids=np.array([[5], [6], [8]], np.int32),
        head_logprobs=np.array([[-0.5], [-0.25], [-1.5]], np.float32),
        support_lengths=np.array([1, 0, 1]),
        support_ids=np.array([5, 8], np.int32),
        support_logprobs=np.array([0.0, 0.0], np.float32),
        routes=np.array([[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]], np.uint8),
        advantages=np.array([1.0, 0.0], np.float32),
        settings=settings,
    )


# As a rollout actor writes them.
RECORDED = {
    "model": "rlhf_algos/tiny-moe",
    "environment": "rlhf_algos/Addition-v0",
    "split": "train",
    "split_rule": "a.b of C, 0.1",
    "mismatch_injection": {"weight_noise": 0.0, "rounding_bits": None, "lag": 0},
    "temperature": 1.0,
    "top_p": 0.5,
    "top_k": 0,
    "max_response_tokens": 16,
    "stop_token_ids": [3],
    "record_head": 0,
    "record_routes": True,
}


@pytest.mark.parametrize(
    "settings, content_hash",
    [
        (SampledWith.from_dict(RECORDED), "6c0959a9a84ad08bb611b290b8e915db62fbacd51765b8ba0999550241fd5152"),
        (None, "8687232e09e6afe3c93370fe2777b49b835702f0593ec9da9e65034c427138fa"),
    ],
)
def test_hashes_of_saved_batches_stay_what_they_are(tmp_path, settings, content_hash):
    """Files that users have carry these hashes."""
    batch = golden_batch(settings)
    assert batch.content_hash == content_hash
    assert read_header(batch.save(tmp_path / "batch")).content_hash == content_hash
    assert RolloutBatch.load(tmp_path / "batch").settings == settings


def test_a_batch_says_which_samples_have_a_reward():
    batch = golden_batch(None)
    assert batch.scored.tolist() == [True, False]
    fewer = full_batch([2, 0, 3]).without_reward(np.array([True, False, False]))
    assert fewer.scored.tolist() == [False, True, True]
    assert fewer.loss_mask.tolist() == [False, False, True, True, True]


def test_settings_come_back_and_unknown_ones_are_an_error(tmp_path):
    settings = SampledWith.from_dict(RECORDED)
    assert settings.as_dict() == RECORDED and settings.stop_token_ids == (3,)
    assert settings.split_facts == {"split": "train", "split_rule": "a.b of C, 0.1"}
    assert set(SAID.as_dict()) == {"model", "temperature", "top_p", "top_k", "environment"}
    with pytest.raises(ValueError, match=r"have unknown \['a'\]"):
        SampledWith.from_dict({"model": "m", "top_p": 1.0, "a": 1})
    with pytest.raises(TypeError, match="'temperature', 'top_p', and 'top_k'"):
        SampledWith(model="m")
    with pytest.raises(ValueError, match=r"settings=\{'a': 1\} must be a SampledWith"):
        golden_batch({"a": 1})
    assert golden_batch(settings).require_settings() is settings
    with pytest.raises(ValueError, match="does not say how it was sampled"):
        golden_batch(None).require_settings()


def test_a_file_whose_settings_are_incomplete_says_what_is_missing_where_it_is_needed(tmp_path):
    """Users have such files; their hash is the one of what they say."""
    saved = golden_batch(SampledWith.from_dict({"model": "m", "top_p": 0.9}))
    path = saved.save(tmp_path / "batch")
    with safe_open(str(path), framework="numpy") as file:
        assert json.loads(file.metadata()["settings"]) == {"model": "m", "top_p": 0.9}
    loaded = RolloutBatch.load(path)
    assert loaded.content_hash == read_header(path).content_hash == saved.content_hash
    assert loaded.settings.as_dict() == {"model": "m", "top_p": 0.9} and loaded.settings.require_model() == "m"
    with pytest.raises(ValueError, match="do not say temperature, top_k, and log p depends on it"):
        loaded.settings.require_distribution()
    with pytest.raises(ValueError, match="does not name its model"):
        SampledWith.from_dict({"top_p": 0.9}).require_model()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rewards": np.zeros(3)}, r"rewards has 3 rows, but the batch has B = 2"),
        ({"rewards": np.zeros(2, np.float32)}, r"rewards must have dtype float64, got float32"),
        ({"loss_mask": np.ones(4, bool)}, r"loss_mask has 4 rows, but the batch has T = 5"),
        ({"head_ids": np.zeros((5, 2), np.int32)}, r"head_ids and head_logprobs are recorded together"),
        ({"routes": np.zeros((14, 1, 2), np.int64)}, r"routes must be uint8 or uint16, got int64"),
        ({"routes": np.zeros((16, 1, 2), np.uint8)}, r"routes has 16 rows, but the batch has R = 14"),
        ({"sample_ids": np.zeros(2, np.int64)}, r"sample_ids must be unique"),
    ],
)
def test_contradictions_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(make_batch([2, 3]), **change)


def test_batches_that_do_not_belong_together_are_refused():
    batch = make_batch([2, 3])
    other = dataclasses.replace(batch, sample_ids=batch.sample_ids + 50)
    with pytest.raises(ValueError, match="different settings"):
        RolloutBatch.concatenate(
            [batch, dataclasses.replace(other, settings=dataclasses.replace(SAID, temperature=0.5))]
        )
    with pytest.raises(ValueError, match="advantages is recorded in 1 of 2 batches"):
        RolloutBatch.concatenate([batch, dataclasses.replace(other, advantages=None)])
    with pytest.raises(ValueError, match="at least one batch"):
        RolloutBatch.concatenate([])
