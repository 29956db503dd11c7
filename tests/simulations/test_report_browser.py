"""The report in a real browser. Set REPORT_SCREENSHOTS to a directory to look at what it draws."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.report.collect import write_atomically
from simulations.report.html_page import render
from simulations.report.study_data import Study
from tests.simulations.chromium import Chromium, find_chromium
from tests.simulations.synthetic import write_study

BINARY = find_chromium()
pytestmark = pytest.mark.skipif(
    BINARY is None, reason="no Chromium to open the report in: apt-get install chromium"
)
LABELS = ("optm", "rqm", "one_bit", "stochastic", "none")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outputs") / "sweep"
    runs = write_study(directory, LABELS, epsilons=(0.5, 1.0, 2.0), rounds=12)
    (runs[0] / "summary.json").unlink()
    return write_atomically(directory / "report.html", render(Study.load(directory)).encode())


@pytest.fixture(scope="module")
def panels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two questions, as the default one is."""
    directory = tmp_path_factory.mktemp("outputs") / "panels"
    first = {"panel": "A. The paper's comparison, ε = 1 for one coordinate and one release"}
    second = {
        "panel": "B. Secure aggregation, ε = 8 for a client's whole run",
        "privacy.epsilon": 8.0,
        "secagg.enabled": True,
        "federation.num_clients": 100,
    }
    write_study(directory, ("optm", "optm paper", "rqm", "erm", "one_bit"), rounds=7, settings=(first,))
    write_study(directory, ("optm", "optm independent", "rqm"), rounds=7, settings=(second,))
    return write_atomically(directory / "report.html", render(Study.load(directory)).encode())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert BINARY is not None
    with Chromium(BINARY, tmp_path_factory.mktemp("profile")) as running:
        yield running


def look(browser: Chromium, name: str) -> None:
    if folder := os.environ.get("REPORT_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.screenshot(Path(folder) / f"{name}.png")


OVERFLOWING = """
[...document.querySelectorAll('th, td, dd, dt, li, .quiet, h1, h2, h3, .legend button, .choices')]
  .filter(box => box.offsetParent && !box.closest('.unseen') && !(box.closest('thead') && innerWidth <= 1040))
  .filter(box => {
    const inside = document.createRange();
    inside.selectNodeContents(box);
    const text = inside.getBoundingClientRect(), own = box.getBoundingClientRect();
    const cut = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).display !== 'inline';
    return cut || text.right > own.right + 1 || own.right > innerWidth + 1 || own.left < -1;
  })
  .map(box => box.innerText)
"""


@pytest.mark.parametrize("width", [360, 400, 760, 1000, 1041, 1280, 1600])
def test_no_cell_overflows_its_box(browser: Chromium, panels: Path, report: Path, width: int) -> None:
    for page in (report, panels):
        browser.open(page, width)
        browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert browser.evaluate(OVERFLOWING) == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        # Nothing scrolls sideways inside the page either, where it would be seen by chance only.
        scrolling = (
            "[...document.querySelectorAll('main *')].filter(each => ['auto', 'scroll'].includes("
            "getComputedStyle(each).overflowX) && each.scrollWidth > each.clientWidth).length"
        )
        assert browser.evaluate(scrolling) == 0
        # Names of rows and ticks of charts stay inside their charts.
        outside = (
            "[...document.querySelectorAll('.plot')].flatMap(plot => [...plot.querySelectorAll('.ytick text, "
            ".xtick text, .xtitle, .ytitle')].filter(text => { const a = text.getBoundingClientRect(), "
            "b = plot.getBoundingClientRect(); return a.left < b.left - 1 || a.right > b.right + 1; })"
            ".map(text => text.textContent))"
        )
        assert browser.evaluate(outside) == []
        look(browser, f"{page.parent.name}-{width}")


def test_negative_control_an_overflowing_cell_is_noticed(browser: Chromium, report: Path) -> None:
    browser.open(report, 1280)
    browser.evaluate(
        "document.querySelector('#results-table tbody td.number').style.cssText = "
        "'display:block;width:9px;overflow:hidden'"
    )
    assert len(browser.evaluate(OVERFLOWING)) == 1


def test_rounds_have_whole_ticks_and_rows_their_own_marker(browser: Chromium, panels: Path) -> None:
    browser.open(panels, 1280)
    rounds = (
        "[...document.querySelectorAll('.plot')].filter(plot => plot.layout.xaxis.title.text === 'round')"
        ".flatMap(plot => [...plot.querySelectorAll('.xtick text')].map(text => Number(text.textContent)))"
    )
    ticks = browser.evaluate(rounds)
    assert len(ticks) > 4
    assert all(tick == int(tick) for tick in ticks)
    marks = "[...document.querySelectorAll('.legend .mark path')].map(path => path.getAttribute('d'))"
    assert len(set(browser.evaluate(marks))) == len(browser.evaluate(marks)) == 6
    # Bars begin at zero, whatever else the axis shows.
    bars = "[...document.querySelectorAll('.plot')].filter(plot => plot.data[0].type === 'bar')"
    assert browser.evaluate(f"{bars}.map(plot => plot.layout.xaxis.range[0])") == [0]
    logarithmic = (
        "[...document.querySelectorAll('.plot')].flatMap(plot => ['xaxis', 'yaxis'].map(axis => "
        "plot.layout[axis])).filter(axis => axis.type === 'log').map(axis => axis.title.text)"
    )
    assert all("log scale" in title for title in browser.evaluate(logarithmic))
    assert len(browser.evaluate(logarithmic)) == 2


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_opens_quietly_alone_and_without_sideways_scrolling(
    browser: Chromium, report: Path, width: int, dark: bool
) -> None:
    browser.open(report, width, dark)
    assert browser.complaints() == []
    assert browser.requests() == [report.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(21, 24, 28)" if dark else "rgb(253, 253, 252)")
    look(browser, f"{'dark' if dark else 'light'}-{width}")


def test_every_chart_is_drawn(browser: Chromium, report: Path) -> None:
    browser.open(report)
    drawn = browser.evaluate(
        "[...document.querySelectorAll('.plot')]"
        ".map(plot => plot.querySelectorAll('.scatterlayer .js-line').length)"
    )
    # First a chart of bars for each of three epsilons. Then curves, and bands under those with several seeds;
    # the chart against epsilon has bars of errors instead.
    assert drawn[:3] == [0, 0, 0]
    assert len(drawn) == 3 + 4
    assert all(count >= len(LABELS) for count in drawn[3:])
    assert browser.evaluate("document.querySelectorAll('.plot .barlayer .point').length") == 3 * 3
    assert browser.evaluate("document.querySelectorAll('.plot .scatterlayer .errorbar').length") == 9
    assert (
        browser.evaluate("document.querySelectorAll('.card:not([hidden]) svg.law path').length") == 4 + 4 + 2
    )


def test_verdict_comes_first_and_totals_before_what_they_are_made_of(browser: Chromium, report: Path) -> None:
    browser.open(report)
    assert browser.evaluate("document.querySelector('table').id") == "privacy-table"
    first = browser.evaluate("document.querySelector('main').innerText")
    assert first.startswith("Verdict")
    assert "At ε = 1 for one coordinate and one release, optm has the least squared error" in first
    assert first.index("Simulated privacy.") < first.index("Charts") < first.index("\nPrivacy\n")
    headings = browser.evaluate("document.querySelector('#privacy-table thead').innerText")
    assert headings.index("ε, client total, local view") < headings.index("ε, client round, local view")
    assert headings.index("ε, client round, local view") < headings.index(
        "certified ε, coordinate release, local view"
    )
    named = browser.evaluate(
        "[...document.querySelectorAll('.plot')].every(plot => plot.ariaLabel.length > 40)"
    )
    assert named
    unnamed = browser.evaluate("[...document.querySelectorAll('img')].filter(image => !image.alt).length")
    assert unnamed == 0


def test_legend_and_choices_change_all_charts(browser: Chromium, report: Path) -> None:
    browser.open(report)
    first = "document.querySelector('#charts .plot')"
    curves = f"{first}.data.filter(trace => trace.name).map(trace => trace.name)"
    last = f"{first}.data.find(trace => trace.name === 'optm').y.at(-1)"
    assert browser.evaluate(curves) == list(LABELS)
    browser.evaluate("document.querySelectorAll('.legend button')[1].click()")
    assert browser.evaluate(curves) == [label for label in LABELS if label != "rqm"]
    assert browser.evaluate("document.querySelectorAll('.legend button')[1].ariaPressed") == "false"
    middle = browser.evaluate(last)
    browser.evaluate("document.querySelector('input[name=epsilon][value=\"2\"]').click()")
    assert browser.evaluate(last) > middle  # more epsilon, more accuracy
    assert browser.evaluate("document.querySelectorAll('.card:not([hidden])').length") == 3
    browser.evaluate("document.querySelector('input[name=rounds][value=\"0.5\"]').click()")
    assert browser.evaluate(f"{first}.data.at(-1).x[0]") == 6
    assert browser.complaints() == []
    look(browser, "chosen")


def test_text_and_tables_need_no_javascript(browser: Chromium, report: Path) -> None:
    browser.open(report, script=False)
    text = browser.evaluate("document.body.innerText")
    for words in (
        "Simulated privacy.",
        "The charts need JavaScript",
        "certified ε",
        "stopped after round 12",
    ):
        assert words in text
    assert browser.evaluate("document.querySelector('.controls').offsetHeight") == 0
    look(browser, "without-javascript")


def test_negative_control_a_bad_page_is_noticed(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'><script>nobodyDefinedThis()</script>")
    browser.open(page)
    assert "http://127.0.0.1:9/x.png" in browser.requests()
    assert any("nobodyDefinedThis" in complaint for complaint in browser.complaints())
