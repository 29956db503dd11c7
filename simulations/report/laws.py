"""The law of a mechanism as a small SVG that follows the colours of the page it stands in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

import numpy as np

from fl_privquant.law.law import Law
from fl_privquant.mechanisms.base import Mechanism
from simulations.report.charts import Dimension, place_of
from simulations.report.study_data import Study

_MOST_CURVES = 16
_WIDTH, _HEIGHT = 300.0, 176.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 34.0, 8.0, 8.0, 30.0
# Low outputs are warm and high ones cool, all light enough for a dark page and dark enough for a light one.
_RAMP = np.array([[190, 62, 48], [222, 148, 62], [118, 160, 120], [64, 148, 184], [70, 92, 178]], float)


@dataclass(frozen=True, eq=False)
class DrawnLaw:
    """A mechanism of the study, its law, where it is shown, and its series."""

    series: str
    place: dict[str, float | str]
    title: str
    mechanism: Mechanism
    law: Law


def laws_of(study: Study, dimensions: tuple[Dimension, ...]) -> tuple[list[DrawnLaw], list[str]]:
    """Each law once, in the order of the series; and the series that have no law to draw."""
    own = tuple(dimension for dimension in dimensions if dimension.key != "setting")
    drawn: dict[tuple[object, ...], DrawnLaw] = {}
    for series in study.series:
        for run in study.runs_of(series):
            if run.mechanism is None or (law := run.mechanism.law) is None:
                continue
            last = run.rounds.iloc[-1]
            # Equal laws in several settings, or with and without secure aggregation, are one picture.
            key = (run.label, run.mechanism.to_bytes())
            if key not in drawn:
                drawn[key] = DrawnLaw(series, place_of(last, own), run.label, run.mechanism, law)
    with_law = {picture.title for picture in drawn.values()}
    ordered = sorted(
        drawn.values(),
        key=lambda picture: (study.series.index(picture.series), sorted(picture.place.items())),
    )
    return ordered, [series for series in study.series if study.runs_of(series)[0].label not in with_law]


def output_colours(count: int) -> list[str]:
    """One colour per output, from warm (low) to cool (high)."""
    at = np.linspace(0, len(_RAMP) - 1, count)
    mixed = np.column_stack([np.interp(at, np.arange(len(_RAMP)), channel) for channel in _RAMP.T])
    return ["#" + "".join(f"{round(value):02x}" for value in row) for row in mixed]


def svg_of(law: Law, description: str) -> str:
    """p(x, i) against x, one line per output; jumps at bins are gaps."""
    top = _nice_top(max(law.start_rows.max(), law.end_rows.max()))
    outputs = _chosen(law.num_levels)
    parts = [
        f'<svg class="law" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="{escape(description)}">',
        *_frame(top),
    ]
    for output, colour in zip(outputs, output_colours(len(outputs)), strict=True):
        path = "".join(_path(law, int(output), top))
        parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linecap="round">'
            f"<title>output {law.values[output]:+.3g}</title></path>"
        )
    parts.append("</svg>")
    return "".join(parts)


def legend_of(law: Law) -> list[tuple[str, str]]:
    """Colour and text of the outputs that are drawn."""
    outputs = _chosen(law.num_levels)
    colours = output_colours(len(outputs))
    return [
        (colour, f"{law.values[i]:+.3g}".replace("-", "−"))
        for colour, i in zip(colours, outputs, strict=True)
    ]


def _chosen(levels: int) -> np.ndarray:
    return np.unique(np.linspace(0, levels - 1, min(levels, _MOST_CURVES)).round().astype(int))


def _path(law: Law, output: int, top: float) -> list[str]:
    steps: list[str] = []
    before = (math.nan, math.nan)
    for k in range(law.starts.size):
        start = (float(law.starts[k]), float(law.start_rows[k, output]))
        end = (float(law.ends[k]), float(law.end_rows[k, output]))
        if not np.allclose(start, before, atol=1e-6):
            steps.append(f"M{_point(*start, top)}")
        steps.append(f"L{_point(*end, top)}")
        before = end
    return steps


def _point(x: float, probability: float, top: float) -> str:
    across = _LEFT + (x + 1) / 2 * (_WIDTH - _LEFT - _RIGHT)
    down = _HEIGHT - _BOTTOM - probability / top * (_HEIGHT - _TOP - _BOTTOM)
    return f"{across:.1f} {down:.1f}"


def _frame(top: float) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<line class="grid" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:g}" y2="{y:g}"/>')
        parts.append(f'<text x="{_LEFT - 5:g}" y="{y + 3.5:g}" text-anchor="end">{share * top:.3g}</text>')
    for x in (-1.0, 0.0, 1.0):
        across = _LEFT + (x + 1) / 2 * (_WIDTH - _LEFT - _RIGHT)
        text = f"{x:+g}".replace("-", "−") if x else "0"
        parts.append(f'<text x="{across:g}" y="{_HEIGHT - 15:g}" text-anchor="middle">{text}</text>')
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    parts.append(f'<text x="{middle:g}" y="{_HEIGHT - 3:g}" text-anchor="middle">input ÷ clip</text>')
    return parts


def _nice_top(largest: float) -> float:
    return next(top for top in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, math.inf) if largest <= top + 1e-9)
