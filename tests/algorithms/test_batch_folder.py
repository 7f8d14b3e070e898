"""Saved batches: a file per training step, of one run, trained on only under the settings they were sampled with."""

import dataclasses
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from rlhf_algos.algorithms.grpo import GRPOConfig
from rlhf_algos.batch import RolloutBatch, SampledWith, read_header
from rlhf_algos.driver import saved_source
from rlhf_algos.driver.saved_batches import BatchFolder, batch_files, batch_folder_of
from rlhf_algos.driver.saved_source import SavedBatches, SavedSource, warn_of_other_advantages
from rlhf_algos.models import resolve_model
from tests.learner.conftest import make_batch

SETTINGS = {"model": "rlhf_algos/tiny-moe", "temperature": 1.0, "top_p": 1.0, "top_k": 0}


def batch(seed=0, **settings) -> RolloutBatch:
    return dataclasses.replace(make_batch([2, 3], seed=seed), settings=SampledWith(**SETTINGS | settings))


def offline(folder, **options) -> GRPOConfig:
    return GRPOConfig().environment("rlhf_algos/Addition-v0").offline_data(input_=folder, **options)


def test_every_training_step_has_a_file_of_its_own(tmp_path):
    folder = BatchFolder(tmp_path / "b", seed=3)
    assert not (tmp_path / "b").exists()
    paths = [folder.save(batch(seed)) for seed in range(3)]
    assert [path.name for path in paths] == [f"step-00000{number}.safetensors" for number in (1, 2, 3)]
    assert batch_files(tmp_path / "b") == paths
    for seed, path in enumerate(paths):
        assert RolloutBatch.load(path).content_hash == batch(seed).content_hash
    origins = [read_header(path).origin for path in paths]
    assert [origin["training_step"] for origin in origins] == [1, 2, 3]
    assert {origin["run"] for origin in origins} == {origins[0]["run"]} and origins[0]["seed"] == 3


def test_a_folder_with_another_runs_batches_is_refused(tmp_path):
    first = BatchFolder(tmp_path, seed=0)
    # Both see an empty folder; the one that writes second is refused.
    at_the_same_time = BatchFolder(tmp_path, seed=1)
    path = first.save(batch(0))
    content = path.read_bytes()
    for refused in (lambda: BatchFolder(tmp_path, seed=0), lambda: at_the_same_time.save(batch(1))):
        with pytest.raises(ValueError, match=rf"save_batches='{tmp_path}'.*run \w{{12}} \(seed 0\)") as error:
            refused()
        assert "name a folder for this run alone" in str(error.value)
    assert path.read_bytes() == content
    assert first.save(batch(2)).name == "step-000002.safetensors"


def test_nothing_is_replaced(tmp_path):
    folder = BatchFolder(tmp_path, seed=0)
    shutil.copy(folder.save(batch(0)), tmp_path / "step-000002.safetensors")
    with pytest.raises(ValueError, match=r"step-000002\.safetensors"):
        folder.save(batch(1))


def test_a_folder_of_two_runs_is_not_trained_on(tmp_path):
    for run in ("a", "b"):
        BatchFolder(tmp_path / run, seed=0).save(batch())
    shutil.copy(tmp_path / "b" / "step-000001.safetensors", tmp_path / "a" / "step-000002.safetensors")
    with pytest.raises(
        ValueError, match=r"holds batches of 2 runs \(step-000001\.\w+ of run .*step-000002\.\w+ of run"
    ):
        SavedBatches(offline(tmp_path / "a"))
    by_hand = batch().save(tmp_path / "b" / "step-000002.safetensors")
    with pytest.raises(ValueError, match=r"step-000002\.safetensors of no run"):
        SavedBatches(offline(tmp_path / "b"))
    # By name they were meant.
    assert len(SavedBatches(offline([tmp_path / "a" / "step-000001.safetensors", by_hand])).files) == 2


def test_trials_and_tries_of_tune_have_folders_of_their_own(tmp_path):
    tries = [("a_00000", "a_00000"), ("a_00001", "a_00001"), ("a_00001", "a_00001-try2"), ("a_00001", "a_00001-try3")]
    for seed, (trial, name) in enumerate(tries):
        path = batch_folder_of(str(tmp_path), seed=0, trial_id=trial).save(batch(seed))
        assert path == tmp_path / name / "step-000001.safetensors"
        assert RolloutBatch.load(path).content_hash == batch(seed).content_hash
    # A try that ended before its first batch leaves nothing to be kept apart from.
    for _ in range(2):
        unused = batch_folder_of(str(tmp_path), seed=0, trial_id="a_00002")
    assert unused.save(batch()).parent == tmp_path / "a_00002"
    with pytest.raises(FileNotFoundError, match=r"holds no saved batch .*There are some in .*a_00000, .*a_00001"):
        batch_files(tmp_path)


def test_without_tune_the_folder_is_the_one_that_was_named(tmp_path):
    folder = batch_folder_of(str(tmp_path), seed=0, trial_id=None)
    assert folder.save(batch()).parent == tmp_path
    assert batch_folder_of(None, seed=0, trial_id=None) is None


def test_a_header_is_read_once_and_not_to_validate(tmp_path, monkeypatch):
    folder = BatchFolder(tmp_path, seed=0)
    for seed in range(3):
        folder.save(batch(seed))
    read = []
    monkeypatch.setattr(saved_source, "read_header", lambda file: read.append(file) or read_header(file))
    config = offline(tmp_path)
    config.validate()
    assert read == []
    assert len(SavedBatches(config).files) == 3
    assert read == batch_files(tmp_path)
    with pytest.raises(ValueError, match=r"offline_data\(input_=.*does not exist"):
        offline(tmp_path / "nowhere").validate()


@pytest.mark.parametrize(
    "name, saved, wanted, fix",
    [
        ("temperature", 0.5, 1.0, r"sampling\(temperature=\.\.\.\)"),
        ("top_p", 0.9, 1.0, r"sampling\(top_p=\.\.\.\)"),
        ("top_k", 5, 0, r"sampling\(top_k=\.\.\.\)"),
        ("model", "some/other-model", "rlhf_algos/tiny-moe", r"language_model\(path\)"),
    ],
)
def test_batches_of_another_distribution_are_refused_unless_accepted(tmp_path, name, saved, wanted, fix):
    batch().save(tmp_path / "1.safetensors")
    batch(**{name: saved}).save(tmp_path / "2.safetensors")
    message = rf"2\.safetensors was sampled with {name}={saved!r}, and this configuration has {name}={wanted!r}.*{fix}"
    with pytest.raises(ValueError, match=message) as error:
        SavedBatches(offline(tmp_path))
    assert f"accept_different=['{name}']" in str(error.value)
    accepted = SavedSource(SavedBatches(offline(tmp_path, accept_different=[name])))
    assert [getattr(accepted.next(0).batch.settings, name) for _ in range(2)] == [wanted, saved]
    other = "top_k" if name != "top_k" else "top_p"
    with pytest.raises(ValueError, match=rf"sampled with {name}="):
        SavedBatches(offline(tmp_path, accept_different=[other]))


def test_one_model_under_two_names_is_one_model(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(resolve_model("rlhf_algos/tiny-moe"))
    for number, model in enumerate(["rlhf_algos/tiny-moe", resolve_model("rlhf_algos/tiny-moe"), str(link)]):
        batch(model=model).save(tmp_path / f"{number}.safetensors")
    assert len(SavedBatches(offline(tmp_path)).files) == 3
    copy = Path(shutil.copytree(resolve_model("rlhf_algos/tiny-moe"), tmp_path / "copy"))
    with pytest.raises(ValueError, match=r"model='rlhf_algos/tiny-moe', and this configuration has model='.*copy'"):
        SavedBatches(offline(tmp_path).language_model(str(copy)))


def test_settings_that_are_no_such_setting_are_refused(tmp_path):
    for wrong in (["seed"], "model"):
        with pytest.raises(ValueError, match=r"accept_different=.* must be a list of some of model, temperature"):
            offline(tmp_path, accept_different=wrong)
    with pytest.raises(ValueError, match=r"offline_data\(output\): only input_ and accept_different"):
        offline(tmp_path, output="x")


def test_what_a_batch_does_not_say_and_what_is_ahead_is_warned_about(tmp_path, caplog):
    ahead = batch()
    ahead = dataclasses.replace(ahead, weight_versions=ahead.weight_versions + 9)
    for number, saved in enumerate([batch(), ahead, dataclasses.replace(batch(), settings=None)]):
        saved.save(tmp_path / f"{number}.safetensors")
    with caplog.at_level(logging.WARNING):
        source = SavedSource(SavedBatches(offline(tmp_path)))
        source.next(0)
    (record,) = caplog.records
    assert "2.safetensors does not say with which model, temperature, top_p, top_k" in record.getMessage()
    caplog.clear()
    source.next(1)
    assert "1.safetensors was sampled at weight version 9, the trainer has version 1" in caplog.text


def test_advantages_of_another_rule_are_named(tmp_path, caplog):
    saved = batch()
    saved.save(tmp_path / "1.safetensors")
    rollouts = SavedSource(SavedBatches(offline(tmp_path))).next(0)
    file, read = rollouts.file, rollouts.batch
    warn_of_other_advantages(file, read, read, rule="RLOOConfig.advantages")
    warn_of_other_advantages(file, dataclasses.replace(read, advantages=None), read, rule="RLOOConfig.advantages")
    assert not caplog.records
    other = dataclasses.replace(read, advantages=read.advantages + np.float32(1))
    warn_of_other_advantages(file, read, other, rule="RLOOConfig.advantages")
    (record,) = caplog.records
    assert "1.safetensors holds advantages of another rule; they are not used" in record.getMessage()
    assert record.getMessage().endswith("computed from the rewards (by RLOOConfig.advantages).")


def test_a_source_goes_on_where_its_state_was_taken(tmp_path):
    for number in range(3):
        batch(number).save(tmp_path / f"{number}.safetensors")
    first = SavedSource(SavedBatches(offline(tmp_path)))
    first.next(0)
    state = json.loads(json.dumps(first.state()))
    again = SavedSource(SavedBatches(offline(tmp_path)))
    again.restore(state)
    for source in (first, again):
        hashes = [source.next(0).batch.content_hash for _ in range(2)]
        assert hashes == [batch(1).content_hash, batch(2).content_hash]
        with pytest.raises(StopIteration, match="All 3 saved batches have been trained on"):
            source.next(0)
