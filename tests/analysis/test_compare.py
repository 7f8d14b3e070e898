"""Corrections on one fixed batch, in this process."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_algos.analysis.compare import compare_settings, learner_for
from rlhf_algos.analysis.setting import REFERENCE, Setting, all_settings
from rlhf_algos.batch import SampledWith
from tests.learner.conftest import make_batch


def sampled_by(batch, path, log_ratio):
    """The batch as if a sampler had made it with `log p - log q = log_ratio` at each response token."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    logprobs, p, t = [], 0, 0
    for n, m in zip(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), strict=True):
        ids = torch.from_numpy(np.concatenate([batch.prompt_ids[p : p + n], batch.response_ids[t : t + m]]))
        with torch.no_grad():
            everything = model(ids[None]).logits[0, n - 1 : n + m - 1].log_softmax(-1)
        logprobs.append(everything)
        p, t = p + n, t + m
    full = torch.cat(logprobs)
    own = full.gather(1, torch.from_numpy(batch.response_ids)[:, None])[:, 0].numpy()
    order = full.argsort(dim=1, descending=True)[:, :16]
    return dataclasses.replace(
        batch,
        rollout_logprobs=(own - np.asarray(log_ratio, np.float32)).astype(np.float32),
        head_ids=order.numpy().astype(np.int32),
        head_logprobs=full.gather(1, order).numpy().astype(np.float32),
        settings=SampledWith(model=str(path), temperature=1.0, top_p=1.0, top_k=0),
    )


def test_identical_policies_make_all_settings_one(peaked_models):
    """Cosine 1, norm ratio 1, clip fraction 0 with every corrector, centered or not."""
    batch = sampled_by(make_batch([6, 9, 3, 5]), peaked_models["untied"], np.zeros(23))
    # To the last bit: the trainer's own numbers.
    own = learner_for(batch, model=None, dtype="float32", token_budget=8192).old_logprobs_of(batch)
    batch = dataclasses.replace(batch, rollout_logprobs=own.numpy())
    table = compare_settings(batch, all_settings())
    assert [row["setting"] for row in table] == [
        "none", "is", "tis", "icepop", "none + centered", "is + centered", "tis + centered", "icepop + centered"
    ]  # fmt: skip
    for row in table:
        assert row["cosine"] == pytest.approx(1.0, abs=1e-6), row
        assert row["norm_ratio"] == pytest.approx(1.0, abs=1e-5), row
        assert row["tis"] == pytest.approx(1.0, abs=1e-5)
        assert row["kept_signal"] == 1.0
        # Without a corrector there is no weight that could be changed.
        assert row.get("tis_clipfrac") == (None if row["setting"].startswith("none") else 0.0)
    json.dumps(table)


def test_numbers_of_a_constructed_batch(peaked_models):
    """One sample of four tokens with ratios 4, 1, 1/4, 1 and one of two with ratio 1; advantages 2 and -1.

    TIS (0, 2):        weights 2, 1, 1/4, 1 | 1, 1     one of six changed
    IcePop (0.5, 2):   weights 0, 1, 0, 1 | 1, 1       two of six changed; kept |A|: (4 + 2) of 10
    """
    ratios = np.array([4.0, 1.0, 0.25, 1.0, 1.0, 1.0])
    batch = make_batch([4, 2], advantages=[2.0, -1.0])
    batch = sampled_by(batch, peaked_models["untied"], np.log(ratios))
    rows = {row["setting"]: row for row in compare_settings(batch, all_settings(score_centering=(False,)))}
    for row in rows.values():
        assert row["tis"] == pytest.approx(8.25 / 6, rel=1e-5)
        assert row["tis_abs"] == pytest.approx((3.0 + 0.75) / 6, rel=1e-4)
        assert row["ess"] == pytest.approx(8.25**2 / (6 * (16 + 1 / 16 + 4)), rel=1e-4)
        assert row["ratio_outside_fraction"] == pytest.approx(2 / 6)
        assert row["mismatch_kl"] == pytest.approx((3 - math.log(4) - 0.75 + math.log(4)) / 6, rel=1e-4)
    assert rows["is"]["tis_clipfrac"] == 0.0 and rows["is"]["kept_signal"] == 1.0
    assert rows["tis"]["tis_clipfrac"] == pytest.approx(1 / 6)
    assert rows["tis"]["tis_weight"] == pytest.approx(6.25 / 6, rel=1e-5)
    assert rows["icepop"]["tis_clipfrac"] == pytest.approx(2 / 6)
    assert rows["icepop"]["tis_zero_fraction"] == pytest.approx(2 / 6)
    assert rows["icepop"]["kept_signal"] == pytest.approx(6 / 10)
    assert rows["none"]["cosine"] == pytest.approx(1.0) and rows["none"]["norm_ratio"] == pytest.approx(1.0)
    assert rows["icepop"]["cosine"] < rows["tis"]["cosine"] < 1.0


def test_the_reference_can_be_chosen(peaked_models):
    ratios = np.array([4.0, 1.0, 0.25, 1.0, 1.0, 1.0])
    batch = sampled_by(make_batch([4, 2], advantages=[2.0, -1.0]), peaked_models["untied"], np.log(ratios))
    against_none = compare_settings(batch, [Setting("tis")], reference=REFERENCE)[0]
    against_itself = compare_settings(batch, [Setting({"type": "tis"})], reference=Setting("tis"))[0]
    assert against_none["cosine"] < 1 - 1e-3
    assert against_itself["cosine"] == pytest.approx(1.0, abs=1e-9)
    assert against_itself["norm_ratio"] == pytest.approx(1.0, abs=1e-9)


def test_only_what_the_batch_allows(peaked_models):
    said = SampledWith(model=str(peaked_models["untied"]), temperature=1.0, top_p=1.0, top_k=0)
    batch = dataclasses.replace(make_batch([4, 2]), settings=said)
    with pytest.raises(ValueError, match="no recorded head"):
        compare_settings(batch, [Setting(score_centering=True)])
    with pytest.raises(ValueError, match="the batch has no routes"):
        compare_settings(batch, [Setting(router_replay="r3")])
    with pytest.raises(ValueError, match="does not name its model"):
        compare_settings(dataclasses.replace(batch, settings=None), [Setting()])
    partial = dataclasses.replace(batch, settings=SampledWith.from_dict({"model": said.model, "top_p": 1.0}))
    with pytest.raises(ValueError, match="do not say temperature, top_k, and log p depends on it"):
        compare_settings(partial, [Setting()])
    # Made by hand: as with temperature 1 and nothing cut off.
    by_hand = compare_settings(dataclasses.replace(batch, settings=None), [Setting("tis")], model=said.model)
    assert by_hand == compare_settings(batch, [Setting("tis")])
    later = dataclasses.replace(batch, weight_versions=batch.weight_versions + 7)
    with pytest.raises(ValueError, match="sampled at weight version 7, and .* has those of version 0"):
        compare_settings(later, [Setting()])
    assert compare_settings(later, [Setting()], model=str(peaked_models["untied"]))[0]["cosine"] == pytest.approx(1.0)


def test_centering_is_not_combined_with_sequence_weights():
    names = [
        str(setting) for setting in all_settings(correctors=("tis", "sequence_tis"), router_replays=("none", "r3"))
    ]
    assert names == [
        "tis", "sequence_tis", "tis + centered",
        "tis + r3", "sequence_tis + r3", "tis + centered + r3",
    ]  # fmt: skip
    assert str(Setting({"type": "tis", "high": 3.0}, True)) == "tis(high=3.0) + centered"
