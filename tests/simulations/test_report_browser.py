"""The report in a real browser. Set REPORT_SCREENSHOTS to a directory to look at what it draws."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from simulations.report.drawings import drawings_of
from simulations.report.html_page import render
from simulations.report.study_data import Study
from tests.simulations.chromium import Chromium, find_chromium
from tests.simulations.synthetic import write_study

BINARY = find_chromium()
pytestmark = pytest.mark.skipif(
    BINARY is None, reason="no Chromium to open the report in: apt-get install chromium"
)
LABELS = ("optm", "rqm", "one_bit", "stochastic", "none")


def page_of(directory: Path) -> Path:
    study = Study.load(directory)
    path = directory / "report.html"
    path.write_text(render(study, drawings_of(study)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outputs") / "sweep"
    runs = write_study(directory, LABELS, epsilons=(0.5, 1.0, 2.0), rounds=12)
    (runs[0] / "summary.json").unlink()
    return page_of(directory)


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
    return page_of(directory)


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
[...document.querySelectorAll('th, td, dd, dt, li, .quiet, h1, h2, h3, .legend span, .choices')]
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
            "[...document.querySelectorAll('.plot')].filter(plot => plot.offsetParent).flatMap(plot => "
            "[...plot.querySelectorAll('text')].filter(text => { const a = text.getBoundingClientRect(), "
            "b = plot.getBoundingClientRect(); return a.left < b.left - 1 || a.right > b.right + 1; })"
            ".map(text => text.textContent))"
        )
        assert browser.evaluate(outside) == []
        # Letters on a phone are not smaller than small print, and those on a wide screen no headlines.
        sizes = (
            "[...document.querySelectorAll('.plot text')].filter(text => text.closest('.plot').offsetParent)"
            ".map(text => text.getBoundingClientRect()).map(box => Math.min(box.width, box.height))"
            ".filter(size => size > 0)"
        )
        assert 8 < np.median(browser.evaluate(sizes)) < 20
        look(browser, f"{page.parent.name}-{width}")


def test_negative_control_an_overflowing_cell_is_noticed(browser: Chromium, report: Path) -> None:
    browser.open(report, 1280)
    browser.evaluate(
        "document.querySelector('#results-table tbody td.number').style.cssText = "
        "'display:block;width:9px;overflow:hidden'"
    )
    assert len(browser.evaluate(OVERFLOWING)) == 1


VISIBLE = "[...document.querySelectorAll('.plot')].filter(plot => plot.offsetParent)"


def test_rounds_have_whole_ticks_and_rows_their_own_marker(browser: Chromium, panels: Path) -> None:
    browser.open(panels, 1280)
    rounds = (
        f"{VISIBLE}.filter(plot => [...plot.querySelectorAll('text')].some(text => text.textContent === "
        "'round')).flatMap(plot => [...plot.querySelectorAll('.drawn-xtick text')]"
        ".map(text => Number(text.textContent)))"
    )
    ticks = browser.evaluate(rounds)
    assert len(ticks) > 4
    assert all(tick == int(tick) for tick in ticks)
    marks = "[...document.querySelectorAll('.legend .mark path')].map(path => path.getAttribute('d'))"
    assert len(set(browser.evaluate(marks))) == len(browser.evaluate(marks)) == 6
    logarithmic = (
        "[...document.querySelectorAll('#charts .chart')].map(chart => [chart.querySelector('h3').innerText, "
        "[...chart.querySelectorAll('text')].some(text => text.textContent.includes('log scale'))])"
    )
    charts = dict(browser.evaluate(logarithmic))
    assert [title for title, has_log_scale in charts.items() if has_log_scale] == [
        "How much accuracy for the bytes that are sent?",
        "How far is each round's mean update from the true one?",
    ]


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
    # First a chart of bars for each of three epsilons, with three series each; then four charts of curves,
    # of which one panel each is shown; then the laws of the epsilon that is chosen first.
    series = "new Set([...plot.querySelectorAll('[data-series]')].map(group => group.dataset.series)).size"
    drawn = browser.evaluate(f"{VISIBLE}.map(plot => {series})")
    assert drawn == [3] * 3 + [len(LABELS)] * 4 + [0] * 3
    assert browser.evaluate("document.querySelectorAll('#charts .plot').length") == 3 * 3 * 2 + 1
    # Of every series there is something to see, but for the exact mean below a logarithmic axis.
    unseen = (
        f"{VISIBLE}.flatMap(plot => [...new Set([...plot.querySelectorAll('[data-series]')].map(group => "
        "group.dataset.series))].filter(series => ![...plot.querySelectorAll("
        "`[data-series='${series}'] path, path[data-series='${series}']`)]"
        ".some(path => !path.closest('defs') && path.getTotalLength() > 1))).length"
    )
    assert browser.evaluate(unseen) == 1


def test_verdict_comes_first_and_totals_before_what_they_are_made_of(browser: Chromium, report: Path) -> None:
    browser.open(report)
    assert browser.evaluate("document.querySelector('table').id") == "privacy-table"
    first = browser.evaluate("document.querySelector('main').innerText")
    assert first.startswith("Verdict")
    assert "At ε = 1 for one coordinate and one release, optm with 2 bits has the least squared" in first
    assert first.index("Simulated privacy.") < first.index("Charts") < first.index("\nPrivacy\n")
    headings = browser.evaluate("document.querySelector('#privacy-table thead').innerText")
    assert headings.index("ε, client total, local view") < headings.index("ε, client round, local view")
    assert headings.index("ε, client round, local view") < headings.index(
        "certified ε, coordinate release, local view"
    )
    named = browser.evaluate(
        "[...document.querySelectorAll('.plot svg')].every(plot => plot.ariaLabel.length > 40)"
    )
    assert named
    unnamed = browser.evaluate("[...document.querySelectorAll('img')].filter(image => !image.alt).length")
    assert unnamed == 0


@pytest.mark.parametrize("script", [True, False])
def test_legend_and_choices_change_all_charts(browser: Chromium, report: Path, script: bool) -> None:
    """Without any script of the page's: the choices are style sheets."""
    browser.open(report, script=script)
    described = f"{VISIBLE}.map(plot => plot.querySelector('svg').ariaLabel)"
    curves = (
        "[...new Set([...document.querySelectorAll('#charts .plot [data-series]')]"
        ".filter(group => group.getBoundingClientRect().width).map(group => group.textContent.trim()))]"
    )
    assert browser.evaluate(curves) == list(LABELS)
    browser.evaluate("document.querySelectorAll('.legend input')[1].click()")
    assert browser.evaluate(curves) == [label for label in LABELS if label != "rqm"]
    before = browser.evaluate(described)
    browser.evaluate("document.querySelector('input[name=epsilon][value=\"2\"]').click()")
    after = browser.evaluate(described)
    assert len(before) == len(after)
    # Findings, and what is drawn against epsilon, are for all of them; three laws and three charts change.
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 3 + 3
    last = [re.search(r"optm ([0-9.]+)%", text) for text in (before[3], after[3])]
    assert float(last[0][1]) < float(last[1][1])  # more epsilon, more accuracy
    ticks = "[...document.querySelectorAll('#charts .plot')].find(plot => plot.offsetParent).querySelectorAll"
    first = f"Number({ticks}('.drawn-xtick text')[0].textContent)"
    assert browser.evaluate(first) == 0
    browser.evaluate("document.querySelector('input[name=rounds][value=\"1\"]').click()")
    assert browser.evaluate(first) == 6
    assert browser.complaints() == []
    look(browser, f"chosen-{'with' if script else 'without'}-script")


def test_negative_control_a_bad_page_is_noticed(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'><script>nobodyDefinedThis()</script>")
    browser.open(page)
    assert "http://127.0.0.1:9/x.png" in browser.requests()
    assert any("nobodyDefinedThis" in complaint for complaint in browser.complaints())
