"""How a mechanism looks everywhere: its color and its marker.

Markers repeat what colours say, for print and for colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fl_privquant.cli.plots import COLOURS, colour_of
from simulations.report.study_data import SECURE, label_of

# matplotlib's name, a path in a box of 12 x 12, and a character for terminals.
_SYMBOLS = (
    ("o", "M6 2a4 4 0 1 0 .01 0z", "●"),
    ("s", "M2.5 2.5h7v7h-7z", "■"),
    ("D", "M6 1l5 5-5 5-5-5z", "◆"),
    ("^", "M6 1.5l5 9H1z", "▲"),
    ("v", "M6 10.5l5-9H1z", "▼"),
    ("p", "M6 1l5 3.7-1.9 5.8H2.9L1 4.7z", "⬟"),
    ("P", "M4.4 1.5h3.2v2.9h2.9v3.2H7.6v2.9H4.4V7.6H1.5V4.4h2.9z", "✚"),
    ("*", "M6 .8l1.5 3.5 3.8.3-2.9 2.5.9 3.7L6 8.8l-3.3 2 .9-3.7L.7 4.6l3.8-.3z", "★"),
    ("X", "M3.2 1L6 3.8 8.8 1 11 3.2 8.2 6 11 8.8 8.8 11 6 8.2 3.2 11 1 8.8 3.8 6 1 3.2z", "✖"),
    ("<", "M1.5 6l9-5v10z", "◀"),
    (">", "M10.5 6l-9-5v10z", "▶"),
    ("h", "M6 1l4.4 2.5v5L6 11 1.6 8.5v-5z", "⬢"),
    ("d", "M6 .5l3.2 5.5L6 11.5 2.8 6z", "♦"),
    ("8", "M4 1h4l3 3v4l-3 3H4L1 8V4z", "⯃"),
)
_LABELS = tuple(COLOURS)


@dataclass(frozen=True)
class Mark:
    """Color, dash and symbol of one series."""

    color: str
    dash: str
    marker: str
    path: str
    glyph: str


def marks_of(private: Mapping[str, bool]) -> dict[str, Mark]:
    """The look of each series of a study, in its order; the mapping says which series have privacy.

    No two series have the same symbol, as long as there are enough symbols: a later series takes the next
    free one.
    """
    marks: dict[str, Mark] = {}
    used: set[int] = set()
    for series, protects in private.items():
        preferred = _place(series)
        free = [
            (preferred + step) % len(_SYMBOLS)
            for step in range(len(_SYMBOLS))
            if (preferred + step) % len(_SYMBOLS) not in used
        ]
        place = free[0] if free else preferred
        used.add(place)
        marks[series] = _mark(series, protects, place)
    return marks


def mark_of(series: str, private: bool = True) -> Mark:
    """The look of a series: its mechanism's colour; dashed without privacy, dotted if securely aggregated."""
    return _mark(series, private, _place(series))


def _place(series: str) -> int:
    label = label_of(series)
    return (_LABELS.index(label) if label in _LABELS else sum(map(ord, label))) % len(_SYMBOLS)


def _mark(series: str, private: bool, place: int) -> Mark:
    label = label_of(series)
    marker, path, glyph = _SYMBOLS[place]
    dash = "dot" if series.endswith(SECURE) else ("solid" if private else "dash")
    return Mark(colour_of(label), dash, marker, path, glyph)
