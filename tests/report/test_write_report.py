"""The files of a report, and the text of its page."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import combinations

import numpy as np
import pytest

from rlhf_algos.report import write_report
from rlhf_algos.report.palette import DARK, LIGHT, look_of
from tests.report.hand_made import DIFFERENCE, GREEDY, IS_HELD_OUT, REWARD, SAMPLED, run_folder, sample, trial_folder

PNG = b"\x89PNG\r\n\x1a\n"
HOSTILE = '$x_{$</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">&amp;'


class Text(HTMLParser):
    """The text of a page outside of scripts and styles, and its elements' names."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.text, self.elements, self.inside = "", [], []
        self.source = page.read_text()
        self.feed(self.source)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in {"script", "style"}:
            self.inside.append(tag)
        if tag in {"td", "th"}:
            self.text += " "

    def handle_endtag(self, tag):
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.text += data


def sweep(folder, **options):
    """Two corrections with two seeds each."""
    for corrector in ("none", "tis"):
        for seed in (0, 1):
            rows = [{REWARD: 0.25 * (seed + 1), DIFFERENCE: 0.01}, {REWARD: 0.5, DIFFERENCE: 0.02, SAMPLED: 0.5}]
            config = {"corrector": corrector, "seed": seed, "lr": 1e-4}
            run_folder(folder, config, rows, state="finished", **options)
    return folder


def test_the_files_of_a_report(tmp_path):
    report = write_report([sweep(tmp_path / "sweep")], tmp_path / "out")
    assert report.page == tmp_path / "out" / "report.html"
    assert [picture.name for picture in report.pictures] == [
        "report-overview.png",
        "report-reward.png",
        "report-held-out.png",
        "report-mismatch.png",
    ]
    assert all(picture.read_bytes().startswith(PNG) for picture in report.pictures)
    assert report.table.name == "report-final-values.md"
    assert "| corrector=tis | 2 | 2 | 0.4375 [" in report.table.read_text()
    assert (report.runs, report.groups, report.notes) == (4, ("corrector=none", "corrector=tis"), ())


def test_the_page_may_be_named(tmp_path):
    report = write_report([str(sweep(tmp_path / "sweep"))], str(tmp_path / "a" / "b.html"), title="A & B")
    assert report.page == tmp_path / "a" / "b.html"
    assert report.pictures[0].name == "b-overview.png"
    assert "<title>A &amp; B</title>" in report.page.read_text()


def test_the_page_says_what_there_is(tmp_path):
    sweep(tmp_path / "sweep", samples=[sample()])
    failed = {"corrector": "icepop", "seed": 7, "lr": 1e-4}
    run_folder(tmp_path / "sweep", failed, state="failed", error="ValueError: log q is nan")
    text = Text(write_report([tmp_path / "sweep"], tmp_path / "out").page).text
    assert "5 runs in 3 groups" in text
    assert "4 finished 1 failed" in text
    assert "What differs corrector; seed (0, 1, 7)" in text
    assert "seed 7, 1 iteration recorded ValueError: log q is nan" in text
    assert "bands reach from their smallest to their largest value" in text
    assert "No chart, because no run has the metric: held-out, greedy; " in text
    # The exact configuration; the table of differences has no column for what is the same.
    assert text.count('"lr": 0.0001') == 3
    assert "Only the options that are not the same in all groups. Group corrector corrector=none none" in text
    assert "2 tokens, mean mismatch 0.25, largest 0.5 at token 2" in text


def test_a_table_of_differences_has_an_end(tmp_path):
    for value in (0, 1):
        run_folder(tmp_path / "runs", {f"option{number:02}": value for number in range(32)})
    text = Text(write_report([tmp_path / "runs"], tmp_path / "out").page).text
    assert "The first 30 of 32: so many differ where" in text
    differences = text[text.index("The first 30 of 32") :]
    assert "option29 " in differences and "option30 " not in differences


def test_tokens_are_coloured_by_their_mismatch(tmp_path):
    shown = sample(tokens=list("abcdef\n"), q=[-1.0] * 7, p0=[-1.0, -1.02, -1.05, -0.8, -1.5, -3.0, -1.0])
    page = Text(write_report([run_folder(tmp_path / "run", {}, samples=[shown])], tmp_path / "out").page)
    tokens = [
        a for tag, a in page.elements if tag == "span" and a.get("class", "").startswith("token") and "title" in a
    ]
    assert [a["class"] for a in tokens] == [f"token step-{step}" for step in (0, 1, 2, 3, 4, 5, 0)]
    assert tokens[3]["title"] == "|log p0 - log q| = 0.2, log p0 = -0.8, log q = -1"
    ranges = ("below 0.01", "0.01 to 0.03", "0.03 to 0.1", "0.1 to 0.3", "0.3 to 1", "1 and above")
    assert "point at a token for its numbers. " + "".join(ranges) in page.text
    assert "↵" in page.text


def test_everything_from_files_is_text(tmp_path):
    for lr in (HOSTILE, "1"):
        run_folder(
            tmp_path / "runs",
            {"lr": lr, HOSTILE: HOSTILE},
            state="failed" if lr == "1" else "finished",
            error=f"{HOSTILE}\n{HOSTILE}" if lr == "1" else None,
            samples=[sample(prompt=HOSTILE, tokens=[HOSTILE, "b"])],
        )
    page = Text(write_report([tmp_path / "runs"], tmp_path / "out", title=HOSTILE).page)
    assert page.text.count(HOSTILE) >= 8
    assert not [tag for tag, _ in page.elements if tag == "img"]
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert [a for a in scripts if a != {"type": "application/json"}] == [{}, {}]
    # Plotly reads names as a kind of HTML, and no data may end its script.
    data = re.findall(r'<script type="application/json">(.*?)</script>', page.source, re.DOTALL)
    assert data and not [figure for figure in data if "<" in figure]
    names = {trace["name"] for figure in data for trace in json.loads(figure)["data"] if "name" in trace}
    assert any("&lt;/script&gt;" in name for name in names)
    assert not [name for name in names if "<" in name]


def test_the_page_asks_for_nothing_from_elsewhere(tmp_path):
    page = Text(write_report([sweep(tmp_path / "sweep")], tmp_path / "out").page)
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    (policy,) = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    assert (tmp_path / "out" / "report.html").read_text().count("* plotly.js v") == 1


def test_what_a_reader_must_know_is_noted(tmp_path):
    path = sweep(tmp_path / "sweep")
    longer = run_folder(path, {"corrector": "tis", "seed": 1, "lr": 1e-4}, [{}] * 4, state="running")
    with (longer / "progress.jsonl").open("a") as file:
        file.write('{"iter')
    run_folder(path, {"corrector": "r", "seed": 1, "lr": 1e-4}, [], state="interrupted")
    report = write_report([path], tmp_path / "out")
    notes = "\n".join(report.notes)
    assert f"{longer}/progress.jsonl: the last line is cut off and left out" in notes
    assert "no complete iteration (interrupted)" in notes
    assert "corrector=tis: its runs end at iterations 2 to 4" in notes
    assert "corrector=tis: more than one run with seed 1" in notes
    assert 'killed by force could not record it and counts as "running"' in notes
    text = Text(report.page).text
    assert all(" ".join(note.split()) in text for note in report.notes)


def test_a_sweep_of_which_every_trial_failed_is_reported(tmp_path):
    for seed in (0, 1):
        trial_folder(tmp_path / "exp", {"corrector": "tis", "seed": seed}, [], failure=ValueError(f"boom {seed}"))
    report = write_report([tmp_path / "exp"], tmp_path / "out")
    assert (report.pictures, report.table) == ((), None)
    text = Text(report.page).text
    assert "2 failed" in text
    assert "boom 0" in text and "boom 1" in text
    assert "plotly.js v" not in report.page.read_text()


def test_an_error_leaves_no_files(tmp_path):
    path = sweep(tmp_path / "sweep")
    (next(path.iterdir()) / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is not JSON"):
        write_report([path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_trials_and_run_folders_are_compared_with_each_other(tmp_path):
    trial_folder(
        tmp_path / "exp", {"corrector": "tis"}, [{"env_runners": {"episode_return_mean": 1.0}}], status="TERMINATED"
    )
    run_folder(tmp_path / "own", {"corrector": "none"}, [{GREEDY: 1.0}])
    report = write_report([tmp_path / "exp", tmp_path / "own"], tmp_path / "out")
    assert report.groups == ("corrector=tis", "corrector=none")


def test_groups_look_different_up_to_the_24th():
    looks = [look_of(index) for index in range(24)]
    assert len({(look.color, look.dash) for look in looks}) == 24
    assert len({look.marker for look in looks[:7]}) == 7


@pytest.mark.parametrize(("palette", "background"), [(LIGHT, "#ffffff"), (DARK, "#14171c")])
def test_colours_can_be_told_apart_by_everyone(palette, background):
    # Machado, Oliveira and Fernandes (2009), full severity; distances in CIE L*a*b*.
    simulations = {
        "none": np.eye(3),
        "protanopia": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "deuteranopia": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ],
        "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
    }
    for name, matrix in simulations.items():
        seen = [lab(np.clip(np.asarray(matrix) @ linear(color), 0, 1)) for color in palette]
        assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 12, name
    for color in palette:
        low, high = sorted((luminance(color), luminance(background)))
        assert (high + 0.05) / (low + 0.05) > 2.2, color


def linear(color):
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(color):
    return float(linear(color) @ [0.2126, 0.7152, 0.0722])


def lab(rgb):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_writing_a_run_folder_does_not_load_the_charts(tmp_path):
    code = (
        "import sys; from rlhf_algos.report import RunFolder, write_report\n"
        f"RunFolder({str(tmp_path)!r}, 'run').append(1, {{'a': 1}})\n"
        "print([name for name in ('plotly', 'jinja2', 'scipy', 'ray', 'torch') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_only_what_was_not_trained_on_is_called_held_out(tmp_path):
    """One run of two evaluated the split that it trains on; an old one does not say."""
    for number, mark in enumerate(({}, {IS_HELD_OUT: 0.0}, {IS_HELD_OUT: float("nan")})):
        runs = tmp_path / str(number)
        run_folder(runs, {"seed": 0}, [{SAMPLED: 0.5}], name="one")
        run_folder(runs, {"seed": 1}, [{SAMPLED: 0.25} | mark], name="two")
        report = write_report([runs], runs / "page")
        text, table = report.page.read_text(), report.table.read_text()
        if mark:
            assert "Evaluation, not known to be held out" in text and "Held-out accuracy" not in text
            assert "evaluated, sampled" in table and "held-out" not in table
        else:
            assert "Held-out accuracy" in text and "not known to be" not in text
            assert "held-out, sampled" in table
