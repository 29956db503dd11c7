"""Checks of values in a configuration: a refusal names the key, the value, and the nearest valid word."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from fl_privquant.errors import InvalidSpecError

__all__ = ["at_least", "nearest", "one_of", "positive"]


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the nearest known word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_of(path: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise InvalidSpecError(
            f"{path}: {value!r} is not one of {', '.join(choices)}{nearest(value, choices)}"
        )


def at_least(path: str, value: int, least: int) -> None:
    """Refuse a number below the least."""
    if value < least:
        raise InvalidSpecError(f"{path}: {value} is below {least}")


def positive(path: str, value: float) -> None:
    """Refuse what is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0.0):
        raise InvalidSpecError(f"{path}: {value} is not a finite number above 0")
