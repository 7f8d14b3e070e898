"""What a terminal shows, and how errors of other processes are told."""

import io
import os

import pytest
from rich.console import Console

from rlhf_algos.commands.errors import message_of
from rlhf_algos.commands.ray_session import standard_error_if_it_fails
from rlhf_algos.commands.terminal import measures
from rlhf_algos.commands.terminal.sweep_display import SweepDisplay, SweepLines, SweepTable, sweep_display
from rlhf_algos.commands.terminal.train_display import LiveTable, Quiet, train_display
from rlhf_algos.plugins import as_text

ROW = {
    "training_iteration": 2.0,
    "env_runners/episode_return_mean": 0.25,
    "learners/default_policy/train_rollout_logprob_abs_diff": 0.0123,
}
EVALUATED = ROW | {"evaluation/env_runners/episode_return_mean": 0.75, "evaluation/env_runners/held_out": 1.0}


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)


def test_a_terminal_gets_a_table_of_the_last_iterations(terminal):
    display = train_display(terminal, 20, quiet=False)
    assert isinstance(display, LiveTable)
    with display:
        display.say("a message")
        for number in range(1, 13):
            display.iteration(number, EVALUATED if number == 12 else ROW)
    shown = terminal.file.getvalue()
    assert "a message" in shown
    assert "12/20" in shown
    lines = [line for line in shown.splitlines() if "1.2e-02" in line]
    assert lines[-1].split() == ["12", "0.250", "0.750", "1.2e-02"]
    table = shown[shown.rindex("mismatch") :]
    assert [line.split()[0] for line in table.splitlines() if "1.2e-02" in line] == [str(n) for n in range(3, 13)]


def test_a_terminal_gets_a_table_of_the_trials(terminal):
    display = sweep_display(terminal, 3, 5, quiet=False)
    assert isinstance(display, SweepTable)
    with display:
        display.started(1, "corrector=none")
        display.result(1, EVALUATED)
        display.result(1, ROW | {"training_iteration": 3.0})
        display.ended(1, None)
        display.started(2, "corrector=tis")
        display.ended(2, "ValueError: broken")
    table = terminal.file.getvalue()
    table = table[table.rindex("trial ") :]
    first, second = (line.split() for line in table.splitlines() if "corrector" in line)
    # The evaluation of the iteration before stays.
    assert first == ["1", "corrector=none", "finished", "3/5", "0.250", "0.750", "1.2e-02"]
    assert second == ["2", "corrector=tis", "failed", "0/5"]
    assert "2 of 3 trials" in terminal.file.getvalue()


def test_what_is_shown_elsewhere_and_when_quiet(terminal):
    file = Console(file=io.StringIO())
    assert isinstance(sweep_display(file, 3, 5, quiet=False), SweepLines)
    assert type(sweep_display(terminal, 3, 5, quiet=True)) is SweepDisplay
    assert type(train_display(terminal, 3, quiet=True)) is Quiet


def test_the_error_of_another_process_is_told_in_one_line():
    from ray.exceptions import RayTaskError

    cause = ValueError("the reward is nan")
    cause.add_note("while scoring sample 3")
    inner = RayTaskError("f", "a long traceback", cause)
    outer = RayTaskError("g", "a longer traceback", inner)
    assert message_of(outer) == "ValueError: the reward is nan\nwhile scoring sample 3"
    text = "Failure # 1 (occurred at now)\nray::GRPO.train() (pid=3)\n  File x\nZeroDivisionError: division by zero"
    assert message_of(RuntimeError(text)) == "ZeroDivisionError: division by zero"
    assert message_of(KeyError()) == "KeyError"
    assert len(message_of(ValueError("x" * 5000))) < 2100


def test_standard_error_is_held_back_unless_something_fails(capfd):
    with standard_error_if_it_fails():
        os.write(2, b"announcement")
    assert capfd.readouterr().err == ""
    with pytest.raises(RuntimeError):
        with standard_error_if_it_fails():
            os.write(2, b"the reason")
            raise RuntimeError
    assert capfd.readouterr().err == "the reason"


def test_values_in_the_names_of_trials():
    assert as_text("tis") == "tis"
    assert as_text({"type": "tis", "high": 3.0}) == "tis(high=3.0)"
    assert as_text({"digits": 2}) == '{"digits": 2}'
    assert as_text([1, None]) == "[1, null]"


def test_a_heading_claims_no_more_than_every_row_says():
    key = "evaluation/env_runners/episode_return_mean"
    held_out, trained_on = ({key: 0.5, "evaluation/env_runners/held_out": value} for value in (1.0, 0.0))
    assert measures.heading_for(measures.EVALUATED, [held_out, {}]) == "held-out"
    for rows in ([trained_on], [held_out, trained_on], [{key: 0.5}]):
        assert measures.heading_for(measures.EVALUATED, rows) == "evaluated"
    assert measures.as_line(trained_on) == "evaluated 0.500"
