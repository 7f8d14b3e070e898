"""Staleness and engine mismatch of a batch whose parts are known (MATH 8.1)."""

import dataclasses

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from rlhf_algos.analysis.decomposition import decompose_mismatch
from tests.analysis.test_compare import sampled_by
from tests.learner.conftest import make_batch


@pytest.fixture(scope="module")
def newer_model(peaked_models, tmp_path_factory):
    """The random model after a step: its output head a little larger."""
    import torch

    path = tmp_path_factory.mktemp("newer")
    model = AutoModelForCausalLM.from_pretrained(peaked_models["untied"], dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.05)
    model.save_pretrained(path)
    return path


def test_the_parts_are_those_that_were_put_in(peaked_models, newer_model):
    batch = make_batch([6, 9, 3, 5], masked=[2])
    engine = np.linspace(-0.2, 0.3, 23)
    batch = sampled_by(batch, peaked_models["untied"], engine)
    parts = decompose_mismatch(batch, model=str(newer_model), sampler_model=str(peaked_models["untied"]))
    assert set(parts) == {"total", "staleness", "engine"}
    trained = batch.loss_mask
    assert parts["engine"]["mean"] == pytest.approx(engine[trained].mean(), abs=1e-5)
    assert parts["engine"]["train_rollout_logprob_abs_diff"] == pytest.approx(np.abs(engine[trained]).mean(), abs=1e-5)
    assert parts["total"]["mean"] == pytest.approx(parts["staleness"]["mean"] + parts["engine"]["mean"], abs=1e-6)
    assert abs(parts["staleness"]["mean"]) > 1e-3
    same = decompose_mismatch(batch, model=str(peaked_models["untied"]), sampler_model=str(peaked_models["untied"]))
    assert same["staleness"]["train_rollout_logprob_abs_diff_max"] == 0.0


def test_a_fraction_is_a_choice_of_samples(peaked_models):
    batch = sampled_by(make_batch([6, 9, 3, 5]), peaked_models["untied"], np.linspace(-0.2, 0.3, 23))
    model = str(peaked_models["untied"])
    half = [
        decompose_mismatch(batch, model=model, sampler_model=model, fraction=0.5, seed=s)["engine"] for s in (0, 0, 1)
    ]
    assert half[0] == half[1] != half[2]
    with pytest.raises(ValueError, match="fraction must be above 0"):
        decompose_mismatch(batch, model=model, sampler_model=model, fraction=0.0)
    mixed = dataclasses.replace(batch, weight_versions=np.arange(23))
    with pytest.raises(ValueError, match="one version at a time"):
        decompose_mismatch(mixed, model=model, sampler_model=model)
