"""The report in a real browser. Set REPORT_SCREENSHOTS to a directory to look at what it draws."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.report.collect import write_atomically
from simulations.report.page import render
from simulations.report.study import Study
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
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert BINARY is not None
    with Chromium(BINARY, tmp_path_factory.mktemp("profile")) as running:
        yield running


def look(browser: Chromium, name: str) -> None:
    if folder := os.environ.get("REPORT_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.screenshot(Path(folder) / f"{name}.png")


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
    # Curves, and bands under those with several seeds; the chart against epsilon has bars instead.
    assert len(drawn) == 4
    assert all(count >= len(LABELS) for count in drawn)
    assert browser.evaluate("document.querySelectorAll('.plot .errorbar').length") == 9
    assert (
        browser.evaluate("document.querySelectorAll('.card:not([hidden]) svg.law path').length") == 4 + 4 + 2
    )


def test_privacy_comes_first_with_its_unit(browser: Chromium, report: Path) -> None:
    browser.open(report)
    assert browser.evaluate("document.querySelector('table').id") == "privacy-table"
    first = browser.evaluate("document.querySelector('main').innerText")
    assert first.startswith("Privacy")
    assert first.index("Simulated privacy.") < first.index("Charts")
    headings = browser.evaluate("document.querySelector('#privacy-table thead').innerText")
    assert "certified ε, coordinate release, local view" in headings
    assert "ε, client total, local view" in headings
    named = browser.evaluate(
        "[...document.querySelectorAll('.plot')].every(plot => plot.ariaLabel.length > 40)"
    )
    assert named
    unnamed = browser.evaluate("[...document.querySelectorAll('img')].filter(image => !image.alt).length")
    assert unnamed == 0


def test_legend_and_choices_change_all_charts(browser: Chromium, report: Path) -> None:
    browser.open(report)
    curves = "document.querySelector('.plot').data.filter(trace => trace.name).map(trace => trace.name)"
    last = "document.querySelector('.plot').data.find(trace => trace.name === 'optm').y.at(-1)"
    assert browser.evaluate(curves) == list(LABELS)
    browser.evaluate("document.querySelectorAll('.legend button')[1].click()")
    assert browser.evaluate(curves) == [label for label in LABELS if label != "rqm"]
    assert browser.evaluate("document.querySelectorAll('.legend button')[1].ariaPressed") == "false"
    middle = browser.evaluate(last)
    browser.evaluate("document.querySelector('input[name=epsilon][value=\"2\"]').click()")
    assert browser.evaluate(last) > middle  # more epsilon, more accuracy
    assert browser.evaluate("document.querySelectorAll('.card:not([hidden])').length") == 3
    browser.evaluate("document.querySelector('input[name=rounds][value=\"0.5\"]').click()")
    assert browser.evaluate("document.querySelector('.plot').data.at(-1).x[0]") == 6
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
