"""The font of a report's figures looks like matplotlib's own, and is what their PDFs embed."""

from __future__ import annotations

import io
import re

import pytest
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from fl_privquant.cli.plots import pyplot
from simulations.report.figure_font import FAMILY, font_families


def embedded_fonts(text: str) -> set[bytes]:
    """The names of the fonts that a PDF with this text embeds, each as TrueType."""
    buffer = io.BytesIO()
    with pyplot().rc_context({"pdf.fonttype": 42, "font.family": font_families()}):
        figure = Figure()
        figure.text(0.1, 0.5, text)
        figure.savefig(buffer, format="pdf")
    pdf = buffer.getvalue()
    names = re.findall(rb"/BaseFont /(?:[A-Z]{6}\+)?(\S+)", pdf)
    assert pdf.count(b"/FontFile2 ") == len(names) / 2 > 0  # a Type 0 font and its descendant have the name
    return set(names)


def test_a_figure_embeds_this_font() -> None:
    assert embedded_fonts("certified ε ≤ 1.5 × 10⁻⁵ – Größe, 1\u202f000 → −∞") == {b"DejaVuSansReport"}


def test_letters_that_it_lacks_are_from_the_whole_font() -> None:
    assert embedded_fonts("задача") == {b"DejaVuSans"}
    assert embedded_fonts("task задача") == {b"DejaVuSans", b"DejaVuSansReport"}


@pytest.mark.parametrize("text", ["AVATAR Ty.", "test accuracy, 95 %", "1.23 × 10⁻⁵", "ε = 0.5 → δ ≤ 10⁻⁵"])
def test_text_is_as_wide_as_in_the_whole_font(text: str) -> None:
    """Also where letters are moved together."""
    font_families()
    ours, whole = (
        TextPath((0, 0), text, 8, prop=FontProperties(family=name)) for name in (FAMILY, "DejaVu Sans")
    )
    assert ours.vertices == pytest.approx(whole.vertices)
