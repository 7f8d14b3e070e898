"""`rlhf-algos replay` on files: its table, its JSON, and what it says about files that are none."""

import argparse
import json

import numpy as np
import pytest

from rlhf_algos.commands.replay import add
from tests.analysis.test_compare import sampled_by
from tests.learner.conftest import make_batch


def replay(*arguments):
    parser = argparse.ArgumentParser()
    add(parser.add_subparsers())
    parsed = parser.parse_args(["replay", *map(str, arguments)])
    return parsed.command(parsed)


@pytest.fixture
def saved(peaked_models, tmp_path):
    """A folder with one batch whose ratios are 4, 1, 1/4, 1, 1, 1."""
    ratios = np.array([4.0, 1.0, 0.25, 1.0, 1.0, 1.0])
    batch = sampled_by(make_batch([4, 2], advantages=[2.0, -1.0]), peaked_models["untied"], np.log(ratios))
    (tmp_path / "batches").mkdir()
    batch.save(tmp_path / "batches" / "step-000001.safetensors")
    return tmp_path / "batches"


def test_it_prints_and_saves_the_table(saved, tmp_path, capsys, peaked_models):
    output = tmp_path / "table.json"
    correctors = ["none", "icepop", '{"type": "tis", "high": 3.0}']
    model = str(peaked_models["untied"])
    status = replay(saved, "--correctors", *correctors, "--json", output, "--sampler-model", model)
    assert status == 0
    result = json.loads(output.read_text())
    rows = {row["setting"]: row for row in result["settings"]}
    assert list(rows) == ["none", "icepop", "tis(high=3.0)"] + [
        f"{name} + centered" for name in ("none", "icepop", "tis(high=3.0)")
    ]
    assert rows["none"]["cosine"] == pytest.approx(1.0)
    assert rows["icepop"]["tis_clipfrac"] == pytest.approx(2 / 6)
    assert result["mismatch"]["staleness"]["train_rollout_logprob_abs_diff_max"] == 0.0
    printed = capsys.readouterr().out
    assert (
        "2 responses, 6 trained tokens" in printed and "tis(high=3.0)" in printed and "log p - log q by part" in printed
    )


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-10]), "truncated"),
        (lambda file: file.write_text("hello"), "not a readable safetensors file"),
        (lambda file: file.unlink(), "holds no saved batch"),
    ],
)
def test_files_that_are_no_batches_are_named(saved, capsys, damage, message):
    damage(next(saved.iterdir()))
    assert replay(saved) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_corrector_is_named(saved, capsys):
    assert replay(saved, "--correctors", "tos") == 2
    assert "tos" in capsys.readouterr().err


def test_what_the_batch_lacks_is_said(saved, capsys):
    assert replay(saved, "--router-replay", "none", "r3") == 2
    assert "the batch has no routes, so --router-replay can only be none" in capsys.readouterr().err
