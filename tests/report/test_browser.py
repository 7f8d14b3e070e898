"""The page in a real browser: headless Chromium, which `requirements/browser.sh` installs."""

import os
import shutil
import time

import pytest
from playwright.sync_api import sync_playwright

from rlhf_algos.report import write_report
from rlhf_algos.report.palette import DARK, LIGHT
from tests.report.hand_made import DIFFERENCE, GREEDY, LEARNER, REWARD, SAMPLED, run_folder, sample

# Nothing but the page may use the network, and there is no display and no GPU.
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


def chromium():
    names = (os.environ.get("CHROMIUM", "chromium"), "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.fail(
            "No Chromium to open the page in. Install it (on Debian: apt-get install chromium), or name the program of "
            "a Chrome or Chromium: make test CHROMIUM=/path/to/chrome"
        )
    return found


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        # A new empty user-data-dir each time is Playwright's default.
        running = playwright.chromium.launch(executable_path=chromium(), headless=True, args=OPTIONS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Three corrections, the last failed, with two seeds each; the mismatch of "none" is 0."""
    folder = tmp_path_factory.mktemp("sweep")
    for corrector, difference in (("none", 0.0), ("tis", 0.01), (HOSTILE, 0.02)):
        for seed in (0, 1):
            rows = [
                {REWARD: 0.25 * i + 0.1 * seed, DIFFERENCE: difference * i, f"{LEARNER}entropy": 1.0 / i}
                for i in (1, 2, 3)
            ]
            rows[2] |= {SAMPLED: 0.5, GREEDY: 0.75}
            failed = corrector == HOSTILE
            run_folder(
                folder,
                {"corrector": corrector, "seed": seed},
                rows,
                state="failed" if failed else "finished",
                error=f"{HOSTILE}\n{HOSTILE}" if failed else None,
                samples=[sample(prompt=HOSTILE, tokens=[HOSTILE, "b"])],
            )
    return write_report([folder], tmp_path_factory.mktemp("out"), title=HOSTILE)


class Opened:
    """A page that was opened without a network, with all that it logged and asked for."""

    def __init__(self, browser, path):
        self.page = browser.new_page(offline=True, color_scheme="light", viewport={"width": 1280, "height": 900})
        self.logged, self.requests = [], []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.wait_until("[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.main-svg'))")

    def wait_until(self, condition):
        # Playwright's own wait evaluates text inside the page, which the page's policy forbids.
        deadline = time.monotonic() + 30
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, condition
            self.page.wait_for_timeout(50)

    def charts(self):
        """Of each chart: its name, the number of its shown curves, their colours and their points."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll("figure")].map(figure => {
                const chart = figure.querySelector(".chart");
                const lines = [...chart.querySelectorAll(".scatterlayer .trace .lines path")]
                    .filter(path => path.getAttribute("d") && path.style.strokeWidth !== "0px");
                return {
                    name: figure.querySelector("figcaption").textContent,
                    curves: lines.length,
                    colors: lines.map(path => path.style.stroke),
                    width: chart.querySelector(".main-svg").getBoundingClientRect().width,
                    means: chart.data.filter(trace => trace.meta.part === "line").map(trace => [...trace.y]),
                };
            })"""
        )


@pytest.fixture(scope="module")
def opened(browser, report):
    """One page for the tests that leave it as they found it: opening it takes seconds."""
    return Opened(browser, report.page)


def rgb(color):
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_the_charts_are_drawn_without_a_word_on_the_console_or_a_request(opened, report):
    drawn = opened.charts()
    assert [chart["name"] for chart in drawn] == [
        "training reward",
        "held-out, sampled",
        "held-out, greedy",
        "mean |log p0 - log q| (log)",
        "entropy in nats",
    ]
    # Two means and two failed runs; "none" agrees exactly, which the logarithmic axis can't show.
    assert (drawn[0]["curves"], drawn[3]["curves"]) == (4, 3)
    assert drawn[0]["means"] == [[0.3, 0.55, 0.8], [0.3, 0.55, 0.8]]
    assert opened.page.locator(".chart .main-svg").count() >= 5
    assert opened.logged == []
    assert opened.requests == [report.page.as_uri()]


def test_a_group_has_one_colour_in_all_charts_and_in_the_legend(opened):
    drawn = opened.charts()
    assert drawn[0]["colors"] == [rgb(LIGHT[0]), rgb(LIGHT[1]), rgb(LIGHT[2]), rgb(LIGHT[2])]
    assert drawn[3]["colors"] == [rgb(LIGHT[1]), rgb(LIGHT[2]), rgb(LIGHT[2])]
    swatches = opened.page.locator("#legend .swatch line")
    shown = [swatches.nth(i).evaluate("line => getComputedStyle(line).stroke") for i in range(swatches.count())]
    assert shown == [rgb(color) for color in LIGHT[:3]]


def test_the_page_follows_the_systems_dark_mode_charts_included(opened):
    look = "() => [getComputedStyle(document.body).backgroundColor, document.querySelector('.xtick text').style.fill]"
    assert opened.page.evaluate(look) == ["rgb(255, 255, 255)", "rgb(28, 31, 36)"]
    opened.page.emulate_media(color_scheme="dark")
    opened.wait_until("document.querySelector('.xtick text').style.fill === 'rgb(231, 234, 238)'")
    assert opened.page.evaluate(look) == ["rgb(20, 23, 28)", "rgb(231, 234, 238)"]
    assert opened.charts()[0]["colors"][:2] == [rgb(DARK[0]), rgb(DARK[1])]
    opened.page.emulate_media(color_scheme="light")
    opened.wait_until("document.querySelector('.xtick text').style.fill === 'rgb(28, 31, 36)'")
    assert opened.charts()[0]["colors"][:2] == [rgb(LIGHT[0]), rgb(LIGHT[1])]
    assert opened.logged == []


def test_a_click_on_the_legend_hides_a_group_in_all_charts(opened):
    before = [chart["curves"] for chart in opened.charts()]
    button = opened.page.locator("#legend button").nth(2)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    hidden = opened.charts()
    assert rgb(LIGHT[2]) not in {color for chart in hidden for color in chart["colors"]}
    assert sum(chart["curves"] for chart in hidden) < sum(before)
    button.click()
    assert [chart["curves"] for chart in opened.charts()] == before


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_no_width_makes_the_page_scroll_sideways(opened, width):
    opened.page.set_viewport_size({"width": width, "height": 800})
    # Plotly redraws a moment after the window has its new size.
    opened.wait_until(
        f"""[...document.querySelectorAll(".chart .main-svg")].every(svg => {{
            const width = svg.getBoundingClientRect().width;
            return {0.7 * min(width, 400)} < width && width <= {width};
        }})"""
    )
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


def test_what_came_from_files_stands_there_as_text_and_does_nothing(opened):
    assert opened.page.title() == HOSTILE
    assert opened.page.locator(".prompt").first.text_content() == HOSTILE
    assert opened.page.locator(".response .token").first.text_content() == HOSTILE
    assert opened.page.locator("#legend button").nth(2).text_content() == f"corrector={HOSTILE[:39]}…"
    assert opened.page.locator("#failed code").first.text_content() == HOSTILE
    assert opened.page.locator("img").count() == 0
    assert opened.page.evaluate("window.hacked") is None


def test_a_script_that_got_into_the_page_would_not_run(browser, report):
    opened = Opened(browser, report.page)
    opened.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
        }"""
    )
    assert opened.page.evaluate("window.hacked") is None
    assert "Content Security Policy" in opened.logged[0]


def test_values_are_shown_where_one_points(opened):
    chart = opened.page.locator("#reward .chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 150)
    opened.wait_until("document.querySelector('#reward .hoverlayer text') !== null")
    shown = " ".join(opened.page.locator("#reward .hoverlayer text").all_text_contents())
    assert "0.55 (0.5 to 0.6)" in shown
    assert "0.5 (failed)" in shown
    assert opened.logged == []


def test_no_button_uploads_a_chart(opened):
    buttons = opened.page.locator("#reward .modebar-btn")
    titles = [buttons.nth(i).get_attribute("data-title") for i in range(buttons.count())]
    assert "Zoom" in titles
    assert not [title for title in titles if "loud" in title or "hare" in title or "Send" in title], titles
