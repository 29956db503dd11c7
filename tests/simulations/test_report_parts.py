"""Parts of the report: marks, ticks, cells and tables, and what one damaged run costs."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fl_privquant.accounting import PrivacyStatement, Unit
from fl_privquant.cli.plots import COLOURS, colour_of
from simulations.report.build import build_report
from simulations.report.charts import Chart, Curve, log_ticks
from simulations.report.drawings import _style, draw_chart, drawings_of
from simulations.report.marks import mark_of, marks_of
from simulations.report.study_data import Study
from simulations.report.summary_tables import Table
from tests.simulations.synthetic import write_study


def test_whiskers_share_one_scale() -> None:
    intervals = (
        (0.9, 0.88, 0.92),
        (0.8, math.nan, math.nan),
        (math.nan, math.nan, math.nan),
        (0.85, -1.0, 2.7),
    )
    rows = tuple({"mechanism": name, "bits": ""} for name in "abcd")
    wide, single, none, huge = Table("t", "T", "", rows, intervals).whiskers()
    assert none is None
    assert wide is not None and single is not None and huge is not None  # noqa: PT018
    assert 0 < single[0] == single[1] == single[2] < wide[1] < wide[0] < wide[2] < 1
    assert huge[1:] == (0.0, 1.0)


def test_colors_are_those_of_the_package() -> None:
    for label in COLOURS:
        assert mark_of(label).color == colour_of(label)
    assert (
        len({mark_of(label).marker for label in ("optm", "optm independent", "rqm", "erm", "one_bit")}) == 5
    )


def test_every_row_has_a_marker_of_its_own() -> None:
    labels = [*COLOURS][:14]
    assert len({mark.marker for mark in marks_of(dict.fromkeys(labels, True)).values()}) == 14
    twice = marks_of({"optm": True, "optm + secure aggregation": True, "none": False})
    assert len({mark.glyph for mark in twice.values()}) == 3
    # With more series than symbols they begin again, and colours tell them apart.
    assert len(marks_of(dict.fromkeys([*COLOURS], True))) == len(COLOURS)


@pytest.mark.parametrize(
    ("low", "high"), [(2e-4, 3e-4), (1.0, 9.0), (1e-9, 1e3), (0.11, 0.19), (5.0, 300.0), (3.6e-3, 0.0178)]
)
def test_logarithmic_axes_have_labels(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 3 <= len(ticks) <= 14
    assert all(low <= tick <= high for tick in ticks)
    # Labels of neighbours do not overlap.
    assert all(math.log(b / a) >= 0.12 * math.log(high / low) for a, b in pairwise(ticks))


def test_bars_begin_at_zero_and_logarithmic_axes_say_so() -> None:
    points = pd.DataFrame({"x": [1.0], "mean": [5.0], "low": [4.8], "high": [5.2], "count": [3]})
    curves = tuple(Curve(series, {}, points, name=series) for series in ("optm", "rqm"))
    marks = marks_of({"optm": True, "rqm": True})
    for bars in (True, False):
        rows = Chart("error", "T", "C. D", "error", "", curves, rows=True, bars=bars)
        ((axes,),) = (drawing.figure.axes for drawing in draw_chart(rows, (), marks))
        assert bool(axes.get_xlim()[0] == 0.0) is bars
    lines = Chart("rounds", "T", "C", "MB sent", "error", curves, log_x=True, log_y=True, points=True)
    ((axes,),) = (drawing.figure.axes for drawing in draw_chart(lines, (), marks))
    for axis, scale in ((axes.xaxis, axes.get_xscale()), (axes.yaxis, axes.get_yscale())):
        assert scale == "log"
        assert axis.label.get_text().endswith("(log scale)")


def test_the_title_of_a_file_is_not_cut_off() -> None:
    points = pd.DataFrame({"x": [1.0], "mean": [5.0], "low": [4.8], "high": [5.2], "count": [3]})
    title = "A. The paper's comparison, ε = 2 for one coordinate and one release, by all clients together"
    chart = Chart("error", title, "C", "round", "error", (Curve("optm", {}, points),))
    with _style():
        (drawing,) = draw_chart(chart, (), marks_of({"optm": True}))
    (text,) = drawing.figure.texts
    assert text.get_text().split() == title.split()
    box = text.get_window_extent()
    assert 0.0 <= box.x0 < box.x1 <= drawing.figure.bbox.width
    (axes,) = drawing.figure.axes
    assert axes.get_window_extent().y1 < box.y0 < box.y1 <= drawing.figure.bbox.height


def test_a_figure_is_drawn_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, draw = [], Figure.draw
    monkeypatch.setattr(
        Figure, "draw", lambda figure, renderer: (drawn.append(figure), draw(figure, renderer))
    )
    points = pd.DataFrame({"x": [1.0], "mean": [5.0], "low": [4.8], "high": [5.2], "count": [3]})
    chart = Chart("error", "T", "C", "round", "error", (Curve("optm", {}, points),))
    (drawing,) = draw_chart(chart, (), marks_of({"optm": True}))
    drawing.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".pdf", ".png"}
    assert drawn == [drawing.figure] * 3


@given(st.floats(1e-6, 1e9))
def test_epsilon_is_never_rounded_down(epsilon: float) -> None:
    shown = float(PrivacyStatement(epsilon, 0.0, Unit.TOTAL).epsilon_cell.replace(",", ""))
    assert epsilon * (1 - 1e-8) <= shown <= epsilon * 1.002


def test_markdown_and_latex_escape() -> None:
    table = Table("t", "T", "ε 100 %", ({"mechanism": "a|b_c", "bits": "(1.2 ± 0.1) × 10⁻³"},))
    assert "a\\|b_c" in table.markdown()
    assert "| --- | ---: |" in table.markdown()
    assert r"(1.2 $\pm$ 0.1) $\times$ $10^{-3}$" in table.latex()
    assert r"$\varepsilon$ 100 \%" in table.latex()


@pytest.mark.parametrize("seeds", [2, 3])
def test_marks_of_an_interval_are_drawn_only_where_there_is_one(seeds: int, tmp_path: Path) -> None:
    """Bars of two seeds had a tick at their end, as if an interval of no width were known."""
    write_study(tmp_path, ("optm", "rqm"), epsilons=(0.5, 1.0), seeds=range(seeds), rounds=2)
    drawn = {drawing.key: drawing for drawing in drawings_of(Study.load(tmp_path))}
    for key in ("compared-1", "accuracy-epsilon"):
        (axes,) = drawn[key].figure.axes
        ends = [line for line in axes.lines if line.get_marker() in ("|", "_")]
        shown = [np.isfinite(line.get_xydata()).all(axis=1).any() for line in ends]
        assert any(shown) == (seeds >= 3), key


def test_a_finding_names_its_budget_whole(tmp_path: Path) -> None:
    """The title of its file was what stood before the first full stop of the caption."""
    settings = ({"task.name": "digits. Small"}, {"task.name": "digits. Large"})
    write_study(tmp_path, ("optm", "rqm"), rounds=2, settings=settings)
    titles = [
        " ".join(text.get_text().split())
        for drawing in drawings_of(Study.load(tmp_path))
        if drawing.key.startswith("compared-")
        for text in drawing.figure.texts
    ]
    assert [title.rpartition("(")[2] for title in titles] == ["task digits. Large)", "task digits. Small)"]


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"mechanism": "x"}),
        ("provenance.json", {"dimension": [1]}),
        ("summary.json", {"wall_seconds": "long"}),
        ("summary.json", {"accuracy": "good"}),
    ],
    ids=str,
)
def test_a_bad_value_costs_at_most_its_run(tmp_path: Path, file: str, change: dict[str, object]) -> None:
    """It cost the whole report."""
    small = tmp_path / "small"
    write_study(small, ("optm", "none"), seeds=(0, 1), rounds=3)
    run = sorted(small.glob("optm-*"))[0]
    (run / file).write_text(json.dumps(json.loads((run / file).read_text()) | change))
    page = build_report(small).read_text()
    others = {path.name for path in small.iterdir() if (path / "summary.json").exists()} - {run.name}
    shown = set(pd.read_parquet(small / "summary.parquet")["run"])
    assert shown >= others
    if run.name not in shown:
        assert run.name in page
        assert "cannot be" in page
