"""`rlhf-algos options`: the declarations, as a configuration file takes them."""

import pytest

from rlhf_algos.algorithms.gspo import GSPOConfig
from rlhf_algos.cli import main
from rlhf_algos.commands.config.sections import SECTIONS, declared_in


def test_every_option_of_every_section_is_shown(capsys):
    assert main(["options", "--algorithm", "gspo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [f"{section}:" for section in SECTIONS]
    for section in SECTIONS:
        for key, option in declared_in(GSPOConfig(), section).items():
            assert f"  {key}: {option.meaning}" in lines
    assert "      a finite number of at least 0; 0.0004 unless given" in lines


def test_one_section_alone(capsys):
    assert main(["options", "deepspeed"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("deepspeed:\n  zero_stage: ") and "learners:" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"), [(["trainin"], "there is no 'trainin'"), (["--algorithm", "ppo"], "there is no 'ppo'")]
)
def test_what_there_is_not(arguments, message, capsys):
    assert main(["options", *arguments]) == 2
    assert message in capsys.readouterr().err
