"""Checks of numbers in a configuration: a refusal names the key, the value and the bound."""

from __future__ import annotations

from fl_privquant.errors import InvalidSpecError


def at_least(path: str, value: float, least: int) -> None:
    """Refuse a number below the least."""
    if not value >= least:
        raise InvalidSpecError(f"{path}: {value} is below {least}")


def unit_interval(path: str, value: float, interval: str = "(0, 1)") -> None:
    """Refuse a number outside an interval from 0 to 1, such as ``[0, 1)``, which has 0 and not 1."""
    above = value >= 0.0 if interval[0] == "[" else value > 0.0
    below = value <= 1.0 if interval[-1] == "]" else value < 1.0
    if not (above and below):
        raise InvalidSpecError(f"{path}: {value} is outside {interval}")
