"""The report in a real browser, in frames as wide as a phone, a tablet and a screen."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from simulations.report import build_report
from tests.simulations.synthetic import write_study

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium to open the report in: apt-get install chromium"
)
LABELS = ("optm", "optm independent", "one_bit", "stochastic", "none")
# A frame may be as narrow as a phone, which a window may not. What the script finds replaces the frames.
FRAMES = """
<body>{frames}
<script>
addEventListener('load', () => {{
  const looks = frame => {{
    const page = frame.contentDocument, width = frame.clientWidth;
    page.querySelectorAll('details').forEach(each => each.open = true);
    const overflowing = [...page.querySelectorAll('th, td, dd, dt, li, p, h1, h2, h3, figcaption')]
      .filter(box => box.offsetParent)
      .filter(box => {{
        const inside = page.createRange();
        inside.selectNodeContents(box);
        const text = inside.getBoundingClientRect(), own = box.getBoundingClientRect();
        return text.right > own.right + 1 || own.right > width + 1 || own.left < -1;
      }})
      .map(box => box.innerText);
    const images = [...page.images].map(each => [each.naturalWidth, each.alt.length]);
    return {{width, scroll: page.documentElement.scrollWidth, overflowing, images}};
  }};
  const seen = [...document.querySelectorAll('iframe')].map(looks);
  document.body.textContent = 'SEEN' + JSON.stringify(seen) + 'END';
}});
</script>
"""


def look_at(page: str, folder: Path, *widths: int) -> list[dict[str, Any]]:
    """What a browser shows of a page, in a frame of each width."""
    frame = "<iframe style='border: 0; width: {}px' srcdoc='{}'></iframe>"
    frames = "".join(frame.format(width, html.escape(page)) for width in widths)
    outer = folder / "frames.html"
    outer.write_text(FRAMES.format(frames=frames))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    command = [str(CHROMIUM), *flags, f"--user-data-dir={folder / 'profile'}", outer.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    seen: list[dict[str, Any]] = json.loads(html.unescape(re.search("SEEN(.*)END", shown)[1]))  # type: ignore[index]
    assert [each["width"] for each in seen] == list(widths)
    return seen


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A sweep over epsilons with an unfinished run, and a study of two questions."""
    sweep, panels = (tmp_path_factory.mktemp("outputs") / name for name in ("sweep", "panels"))
    runs = write_study(sweep, LABELS, epsilons=(0.5, 1.0), rounds=4)
    (runs[0] / "summary.json").unlink()
    first = {"panel": "A. The paper's comparison, ε = 1 for one coordinate and one release"}
    second = {"panel": "B. Secure aggregation", "privacy.epsilon": 8.0, "secagg.enabled": True}
    write_study(panels, LABELS[:3], rounds=4, settings=(first, second))
    return [build_report(folder).read_text() for folder in (sweep, panels)]


def test_nothing_is_cut_off_and_pictures_are_drawn_and_described(reports: list[str], tmp_path: Path) -> None:
    for page in reports:
        for seen in look_at(page, tmp_path, 360, 760, 770, 1200):
            assert seen["overflowing"] == []
            assert seen["scroll"] <= seen["width"]
            assert len(seen["images"]) > 3
            assert all(width > 0 and words > 40 for width, words in seen["images"])


def test_a_cell_that_overflows_is_noticed(reports: list[str], tmp_path: Path) -> None:
    """Negative control."""
    narrow = "<style>tbody td { display: block !important; width: 2px !important; padding: 0 }</style>"
    (seen,) = look_at(reports[0].replace("</head>", f"{narrow}</head>"), tmp_path, 1200)
    assert seen["overflowing"]
