"""Markdown from tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["number", "rounded_up", "table"]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text; numbers are set to the right."""
    found = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    numeric = [
        all(_is_number(row[at]) for row in found) and any(row[at] for row in found)
        for at in range(len(headings))
    ]
    rule = ["---:" if each else "---" for each in numeric]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(headings), rule, *found]) + "\n"


def number(value: float, digits: int = 3) -> str:
    """A number with some decimals; nothing where it is missing."""
    if math.isnan(value):
        return ""
    return "∞" if math.isinf(value) else f"{value:.{digits}f}"


def rounded_up(value: float, digits: int = 4) -> str:
    """An epsilon with some decimals, never below it."""
    if not math.isfinite(value):
        return number(value)
    scale = 10.0**digits
    # Tables keep seven digits: what is above a rounded figure by less than that is meant to be it.
    return f"{math.ceil(value * scale * (1.0 - 1e-7)) / scale:.{digits}f}"


def _is_number(text: str) -> bool:
    return not text or text.replace(".", "", 1).replace("∞", "0").lstrip("-+").isdigit()
