"""Numbers as text: errors with their interval, thousands with commas."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def count_text(value: float) -> str:
    """A whole number with commas between thousands; past a million millions, powers of ten."""
    return scientific(value, 4) if value >= 1e12 else f"{value:,.0f}"


def bytes_text(megabytes: float) -> str:
    """Megabytes to three digits."""
    return count_text(megabytes) if megabytes >= 1000 else f"{megabytes:.3g}"


def scientific(value: float, digits: int = 3) -> str:
    """A number in powers of ten where plain digits would be long.

    >>> scientific(0.0000123), scientific(0.25), scientific(1e-05, 1)
    ('1.23 × 10⁻⁵', '0.25', '10⁻⁵')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits}g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return power if short == "1" else f"{short} × {power}"


def bits_text(bits: float) -> str:
    """A number of bits in a sentence.

    >>> bits_text(1.0), bits_text(2.5)
    ('1 bit', '2.5 bits')
    """
    return f"{bits:g} bit" if bits == 1 else f"{bits:g} bits"


def percent_text(mean: float, low: float, high: float) -> str:
    """An accuracy in per cent with its interval, if there is one.

    >>> percent_text(0.9, 0.875, 0.925), percent_text(0.9, 0.72, 1.0), percent_text(0.9, math.nan, math.nan)
    ('90.0 ± 2.5', '90.0 (72.0 to 100.0)', '90.0')
    """
    if not math.isfinite(mean) or not math.isfinite(low):
        return f"{100 * mean:.1f}" if math.isfinite(mean) else "–"
    if _is_cut(mean, low, high):
        return f"{100 * mean:.1f} ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * mean:.1f} ± {100 * (high - mean):.1f}"


def _is_cut(mean: float, low: float, high: float) -> bool:
    """Whether an interval would reach further at one end, were that possible; it has no half then."""
    return not math.isclose(high - mean, mean - low, rel_tol=1e-6, abs_tol=1e-15)


def with_interval(mean: float, low: float, high: float) -> str:
    """A mean and half of its interval, in the same power of ten.

    >>> with_interval(0.00123, 0.00119, 0.00127), with_interval(2.5, math.nan, math.nan)
    ('(1.230 ± 0.040) × 10⁻³', '2.5')
    >>> with_interval(2.0, 0.0, 6.5)
    '2 (0 to 6.5)'
    """
    if not math.isfinite(mean) or not math.isfinite(low) or mean == 0:
        return scientific(mean)
    if _is_cut(mean, low, high):
        return f"{scientific(mean)} ({scientific(low)} to {scientific(high)})"
    half = high - mean
    exponent = math.floor(math.log10(abs(mean)))
    if -2 <= exponent <= 3:
        decimals = max(0, 3 - exponent)
        return f"{mean:.{decimals}f} ± {half:.{decimals}f}"
    scale = 10.0**exponent
    power = str(exponent).translate(_SUPERSCRIPTS)
    return f"({mean / scale:.3f} ± {half / scale:.3f}) × 10{power}"


def joined(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    >>> joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
