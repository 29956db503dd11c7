"""Clipping of whole updates: the L2 norm, and how much the coordinate clip would cut."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import InvalidSpecError, InvalidUpdateError

__all__ = ["checked_clip", "clip_l2", "clipped_share"]

# Room for rounding: the scaled vector's norm must not exceed the bound in its own precision either.
_INSIDE = 1.0 - 1e-6


def checked_clip(name: str, value: float) -> float:
    """The clip as a float, if it is finite and above 0."""
    try:
        clip = float(value)
    except (TypeError, ValueError):
        clip = math.nan
    if not (math.isfinite(clip) and clip > 0.0):
        raise InvalidSpecError(f"{name}: {value} is not a finite number above 0")
    return clip


def clip_l2(vector: NDArray[Any], bound: float) -> float:
    """The factor, at most 1, by which ``vector`` is scaled in place so that its L2 norm is <= ``bound``.

    A vector inside the ball, such as zero, is left as it is.

    >>> vector = np.array([3.0, 4.0])
    >>> round(clip_l2(vector, 1.0), 5), vector.round(5)
    (0.2, array([0.6, 0.8]))
    """
    from fl_privquant.codec.vector_loops import scale_in_place, sum_of_squares

    bound = checked_clip("l2_clip", bound)
    squares = sum_of_squares(vector)
    if not math.isfinite(squares):
        # Squares overflow long before values do: the largest value is taken out first.
        largest = float(np.abs(vector).max())
        if not math.isfinite(largest):
            raise InvalidUpdateError("update: not finite; nothing was encoded, look for divergence upstream")
        norm = largest * math.sqrt(sum_of_squares(vector.astype(np.float64) / largest))
    else:
        norm = math.sqrt(squares)
    if norm <= bound:
        return 1.0
    factor = bound / norm * _INSIDE
    scale_in_place(vector, factor)
    return factor


def clipped_share(vector: NDArray[Any], clip: float) -> float:
    """The share of coordinates outside [-clip, clip]; 0 for none at all.

    >>> clipped_share(np.array([0.1, -0.3, 0.2, 0.0]), clip=0.15)
    0.5
    """
    return float(np.count_nonzero(np.abs(vector) > clip)) / vector.size if vector.size else 0.0
