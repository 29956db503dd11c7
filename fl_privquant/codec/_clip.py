"""Clipping of whole updates by the L2 norm, and the share of coordinates that the coordinate clip changes.

**What accounting assumes.** The norm of an update that was clipped and rotated is at most
``NORM_ROUNDING`` (1 + 1e-5, :mod:`fl_privquant.privacy_loss.sums.gaussian_bound`) times its bound B. Proof,
for d coordinates up to 2^30 in floats of unit roundoff u (2^-24 or 2^-53) and smallest normal number t:

1. *The norm.* Squares are added in double precision, of numbers whose squares neither overflow nor underflow
   (:func:`clip_l2` takes a power of two out first, which is exact). The sum is off by a factor of at most
   1 + d 2^-53 <= 1 + 2^-23, the norm by half of that.
2. *The scaling.* A factor is rounded a few times, by 2^-53 each, and is 1e-6 too small on purpose. Writing
   a product back as a float moves a coordinate x by at most u abs(x) + t, even on a machine that flushes
   numbers below t to zero: a vector of norm up to B moves by at most u B + sqrt(d) t in norm.
3. *The rotation* (:mod:`fl_privquant.codec._rotation`). A coordinate takes part in at most two transforms of
   blocks and two of columns. Those of n coordinates have log2 n stages of additions and a product with a
   constant that is itself rounded, which counts as two steps; block and column together have at most 2^36
   coordinates. Each of these 2 * (36 + 2 * 2) = 80 steps moves the vector by at most u times its norm plus
   sqrt(d) t; a stage also makes the norm sqrt(2) times as large, which the product undoes, and relative to
   this larger norm t only matters less. (*A subset* is clipped after the rotation, so that only steps 1 and
   2 count.)
4. *Together.* :func:`check_clips` refuses bounds with B / sqrt(d) < 2^26 t, so that sqrt(d) t <= 2^-26 B. The
   norm is at most B (1 + 2^-24 + 81 (u + 2^-26)) < B (1 + 6.2e-6) for float32; the coordinate clip makes it
   only smaller.

Below that range this does not hold: with coordinates of a few multiples of the smallest subnormal number,
there is a vector whose norm becomes 1.875 times its bound by rounding alone.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from fl_privquant import _validation
from fl_privquant._array_types import Array
from fl_privquant.errors import InvalidSpecError, InvalidUpdateError

# Room for rounding: the norm of the scaled vector must not exceed the bound in its precision either.
_INSIDE: Final = 1.0 - 1e-6
# The factor that clips keep from the ends of the range of floats.
_MARGIN: Final = 2.0**26
# The range of sums of squares, and the least bound, for which no power of two has to be factored out; float32
# is always within them.
_PLAIN_SQUARES: Final = (2.0**-900, 2.0**900)
_PLAIN_BOUND: Final = 2.0**-400


def check_clips(clip: float, l2_clip: float | None, dimension: int, dtype: np.dtype[Any]) -> None:
    """Raise InvalidSpecError for clips at which the floats of an update are not accurate enough.

    Both the coordinate clip and the share ``l2_clip / sqrt(dimension)`` of a coordinate must keep a factor of
    2^26 from the smallest normal number of ``dtype``, and the clips as far from its largest number.
    """
    kind = np.finfo(dtype)
    least, most = float(kind.tiny) * _MARGIN, float(kind.max) / _MARGIN
    if not least <= clip <= most:
        raise InvalidSpecError(
            "clip",
            clip,
            f"is outside {least:.3g} to {most:.3g}, where {dtype} is accurate",
            "scale the model",
        )
    if l2_clip is None:
        return
    share = l2_clip / math.sqrt(max(dimension, 1))
    if share < least or l2_clip > most:
        raise InvalidSpecError(
            "l2_clip",
            l2_clip,
            f"for {dimension} coordinates, {share:.3g} for each, is outside {least:.3g} for "
            f"each to {most:.3g} for all, where {dtype} is accurate",
            "scale the model, or use float64",
        )


def clip_l2(vectors: Array, bound: float) -> float:
    """Scale a vector, or each row of a matrix, in place so that its L2 norm is <= ``bound``.

    The result is the factor, at most 1, by which the vector was scaled; of rows, the smallest one. A vector
    inside the ball is not changed. The norm is right for any finite floats; the scaled vector keeps the bound
    where :func:`check_clips` accepts it. A factor is 0 where it is too small for a float.

    >>> vector = np.array([3.0, 4.0])
    >>> round(clip_l2(vector, 1.0), 5), vector.round(5)
    (0.2, array([0.6, 0.8]))
    """
    from fl_privquant.codec._loops import clip_rows

    bound = _validation.check_positive("l2_clip", bound)
    rows = np.atleast_2d(vectors)
    factors = np.full(len(rows), np.nan)
    if bound >= _PLAIN_BOUND:
        clip_rows(rows, bound, _INSIDE, *_PLAIN_SQUARES, factors)
    for row in np.flatnonzero(np.isnan(factors)):
        factors[row] = _clip_far(rows[row], bound)
    return float(factors.min())


def _clip_far(vector: Array, bound: float) -> float:
    """Clip a vector whose squares may leave the range of floats."""
    from fl_privquant.codec._loops import scale_in_place, sum_of_squares

    largest = float(np.abs(vector).max(initial=0.0))
    if not math.isfinite(largest):
        raise InvalidUpdateError("update: not finite; nothing was encoded, look for divergence upstream")
    if largest == 0.0:
        return 1.0
    # Coordinates are multiplied by a power of two, so that no square leaves the range of floats. It is a
    # normal number: the inverse of the smallest subnormal number is no float.
    unit = 2.0 ** -min(max(math.frexp(largest)[1], -1000), 1022)
    norm = math.sqrt(sum_of_squares(vector, unit))
    if norm <= bound * unit:
        return 1.0
    factor = bound / norm * _INSIDE
    scale_in_place(vector, unit, factor)
    return factor * unit


def clipped_fraction(vector: Array, clip: float) -> float:
    """The share of coordinates outside [-clip, clip]; 0 for none at all.

    >>> clipped_fraction(np.array([0.1, -0.3, 0.2, 0.0]), clip=0.15)
    0.5
    """
    outside = np.count_nonzero(vector > clip) + np.count_nonzero(vector < -clip)
    return float(outside) / vector.size if vector.size else 0.0
