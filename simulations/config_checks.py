"""Checks of values in a configuration: a refusal names the key, the value, and the nearest valid word."""

from __future__ import annotations

from fl_privquant.checks import choice as one_of
from fl_privquant.checks import nearest, positive
from fl_privquant.errors import InvalidSpecError

__all__ = ["at_least", "nearest", "one_of", "positive"]


def at_least(path: str, value: int, least: int) -> None:
    """Refuse a number below the least."""
    if value < least:
        raise InvalidSpecError(f"{path}: {value} is below {least}")
