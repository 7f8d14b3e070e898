"""Every supported architecture, from the first publication to the saved model: one head and vocabulary of each.

`make architectures` runs all heads and vocabularies; what does not work on a CPU is said in docs/architectures.md.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from architecture_cases import UNTIED_ONLY, Case, every_case, one_of_each  # noqa: E402
from architecture_models import ARCHITECTURES  # noqa: E402
from architectures import EXACT, ROUNDED, works  # noqa: E402

CASES = [str(case) for case in one_of_each()]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the script that makes the documented table finds, with two processes that share the cases."""
    path = tmp_path_factory.mktemp("architectures") / "results.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "architectures.py"), "--one-of-each", "--processes", "2"]
    run = subprocess.run([*command, "--json", str(path)], capture_output=True, text=True, check=False)
    assert path.exists(), run.stderr[-4000:]
    return json.loads(path.read_text())


@pytest.mark.parametrize("case", CASES)
def test_it_is_trained_published_saved_and_loaded(results, case):
    result = results[case]
    assert "error" not in result, result["error"]
    exact = result["sampler_dtype"] == "float32"
    furthest = max(*result["differences"], result["saved_in_vllm"][0])
    assert len(result["differences"]) == 4 and furthest < (EXACT if exact else ROUNDED), result
    assert furthest * 10 < min(result["moved"]), "the updates are too small to tell old weights from new ones"
    assert result["saved_in_transformers"][0] < (EXACT if exact else ROUNDED), result
    if Case.parse(case).has_routers:
        assert result["replayed_fraction"] == 1.0 and (result["route_mismatch"] == 0.0 or not exact)
    assert works(result)


def test_every_head_and_vocabulary_is_among_them():
    assert {case.architecture for case in one_of_each()} == set(ARCHITECTURES)
    for has_routers in (True, False):
        chosen = [case for case in one_of_each() if case.has_routers == has_routers]
        assert {case.tied for case in chosen} == {True, False}
        assert {case.vocabulary for case in chosen} == {263, 320, 512}


def test_the_documented_results_are_complete():
    """docs/data/architectures.json has every case; what doesn't work is a tied head that vLLM does not tie."""
    documented = json.loads((ROOT / "docs" / "data" / "architectures.json").read_text())
    assert set(documented) == {str(case) for case in every_case()}
    refused = {str(case) for case in every_case() if case.tied and case.architecture in UNTIED_ONLY}
    assert {name for name, result in documented.items() if not works(result)} == refused
    assert all("does not tie its output head" in documented[name]["error"] for name in refused)
