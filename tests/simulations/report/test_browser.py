"""The report in a real browser. Set REPORT_SCREENSHOTS to a directory to look at what it draws."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.report import build_report
from tests.simulations.chromium import Chromium, find_chromium
from tests.simulations.synthetic import write_study

BINARY = find_chromium()
pytestmark = pytest.mark.skipif(
    BINARY is None, reason="no Chromium to open the report in: apt-get install chromium"
)
LABELS = ("optm", "optm independent", "one_bit", "stochastic", "none")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A sweep over epsilons with an unfinished run, and a study of two questions."""
    sweep, panels = (tmp_path_factory.mktemp("outputs") / name for name in ("sweep", "panels"))
    runs = write_study(sweep, LABELS, epsilons=(0.5, 1.0, 2.0), rounds=12)
    (runs[0] / "summary.json").unlink()
    first = {"panel": "A. The paper's comparison, ε = 1 for one coordinate and one release"}
    second = {"panel": "B. Secure aggregation", "privacy.epsilon": 8.0, "secagg.enabled": True}
    write_study(panels, LABELS[:3], rounds=7, settings=(first, second))
    return [build_report(folder) for folder in (sweep, panels)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert BINARY is not None
    with Chromium(BINARY, tmp_path_factory.mktemp("profile")) as running:
        yield running


OVERFLOWING = """
[...document.querySelectorAll('th, td, dd, dt, li, p, h1, h2, h3, figcaption')]
  .filter(box => box.offsetParent)
  .filter(box => {
    const inside = document.createRange();
    inside.selectNodeContents(box);
    const text = inside.getBoundingClientRect(), own = box.getBoundingClientRect();
    return text.right > own.right + 1 || own.right > innerWidth + 1 || own.left < -1;
  })
  .map(box => box.innerText)
"""
UNFOLD = "document.querySelectorAll('details').forEach(each => each.open = true)"


@pytest.mark.parametrize("width", [360, 760, 770, 1200])
def test_nothing_is_cut_off(browser: Chromium, reports: list[Path], width: int) -> None:
    for page in reports:
        browser.open(page, width)
        browser.evaluate(UNFOLD)
        assert browser.evaluate(OVERFLOWING) == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        if folder := os.environ.get("REPORT_SCREENSHOTS"):
            browser.screenshot(Path(folder) / f"{page.parent.name}-{width}.png")


def test_negative_control_an_overflowing_cell_is_noticed(browser: Chromium, reports: list[Path]) -> None:
    browser.open(reports[0], 1200)
    narrow = "document.querySelector('tbody td').style.cssText = 'display:block;width:2px;padding:0'"
    browser.evaluate(narrow)
    assert len(browser.evaluate(OVERFLOWING)) == 1


@pytest.mark.parametrize("script", [True, False])
def test_it_opens_quietly_and_alone(browser: Chromium, reports: list[Path], script: bool) -> None:
    for page in reports:
        browser.open(page, script=script)
        assert browser.complaints() == []
        assert browser.requests() == [page.as_uri()]


def test_pictures_are_drawn_and_described(browser: Chromium, reports: list[Path]) -> None:
    for page in reports:
        browser.open(page)
        browser.evaluate(UNFOLD)
        sizes = browser.evaluate("[...document.images].map(each => [each.naturalWidth, each.alt.length])")
        assert len(sizes) > 3
        assert all(width > 0 and words > 40 for width, words in sizes)


def test_negative_control_a_bad_page_is_noticed(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'><script>nobodyDefinedThis()</script>")
    browser.open(page)
    assert "http://127.0.0.1:9/x.png" in browser.requests()
    assert any("nobodyDefinedThis" in complaint for complaint in browser.complaints())
