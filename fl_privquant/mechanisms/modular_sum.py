"""Sums of codes modulo fewer bits than their range takes, because sums of honest codes spread less.

A sum of the codes of n clients can be anything from 0 to n max_code. But the noise of honest clients is
independent, so that their sum stays near its mean, and fewer bits identify it. Let z be the code
that stands for an input of 0 (it may lie between two codes). A sum is taken modulo 2^w, and the server takes
the representative nearest to n z, which is the sum itself whenever that is within 2^(w - 1) of n z. (Where
the window around n z exceeds 0..n max_code it is moved inside.)

**Bound.** Let C_c be the code of client c. By Markov's inequality, for each rate r > 0,

    Pr(sum_c (C_c - z) >= t)  <=  e^(-r t) prod_c E e^(r (C_c - z))  <=  e^(-r t) M(r)^n,

where M(r) is the largest of these expectations over all inputs. A distribution is linear between its rows,
and so is the expectation: M(r) is attained at a row. (For the Poisson binomial mechanism the rows list only
some inputs; but its codes grow with the input, so that the largest expectation is that of the first or of the
last row.) So t = min over r of (n log M(r) + K) / r is exceeded with odds of e^-K at most. With K = log(2 d /
odds) all d sums of a round stay within t on both sides, except with ``odds``. M(r) includes signal and noise,
so the bound holds for *all* inputs in [-1, 1], even if all clients' coordinates are at the clip. It grows
with n, so that the sum of fewer clients, when some drop out, stays within it too.

**Privacy** does not depend on the width. The residue of a sum is a function of the sum, and reveals no more;
a masked code is uniform modulo 2^w for every w. A server that demands too few bits learns less, and cannot
read its own sum.

**Hostile clients** can shift a residue as they could shift a sum. With fewer bits than the range of sums
takes, a sum out of range is not noticed. The test of the sum's energy
(:mod:`fl_privquant.mechanisms.sum_limits`) replaces the range check. A representative is never further from
the middle than the sum, so that a wrap cannot raise a false alarm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from fl_privquant._array_types import Array, ArrayLike, Floats, Ints
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import CodeOverflowError

WRAP_ODDS: Final = 1e-9
"""Odds that any coordinate of a round of honest clients wraps, whatever their data."""

# Rates at which the bound is tried, in units of the best rate for a normal distribution.
_RATES = np.geomspace(0.25, 4.0, 49)
# For distributions with more numbers than this the bound would take long; they keep the ring of all sums.
_MAX_NUMBERS = 1 << 20
_FLOAT_ROOM = 1.0 + 1e-9


@dataclass(frozen=True)
class SumRing:
    """The integers modulo 2^bits, in which codes are added up.

    >>> ring = SumRing(bits=3, max_code=None, center=0.5, largest=1)
    >>> codes = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 1]] * 4)
    >>> ring.unwrap(ring.residues(codes.sum(axis=0)), num_clients=12), codes.sum(axis=0)
    (array([8, 8, 4]), array([ 8,  8, 12]))
    """

    bits: int
    """Width of a sum."""
    max_code: int | None
    """Largest code, where all sums of codes are below 2^bits; None where codes are residues."""
    center: float | None = None
    """The code that stands for an input of 0, where the ring is narrower than the range of sums. A residue is
    then decoded to the representative nearest to this code times the number of clients. None: residues are
    the sums themselves."""
    largest: int = 0
    """Largest code before it is reduced, where there is a ``center``."""

    def residues(self, codes: Array) -> Array:
        """A client's codes, or the sum of several clients' codes, modulo 2^bits."""
        return codes if self.center is None else codes & ((1 << self.bits) - 1)

    def unwrap(self, total: ArrayLike, num_clients: int) -> Array:
        """The sums of ``num_clients`` clients' codes whose residues are ``total``.

        Raises CodeOverflowError for a residue that the codes of ``num_clients`` clients cannot add up to.
        """
        residues = np.asarray(total)
        if self.center is None:
            return residues
        most, size = num_clients * self.largest, 1 << self.bits
        lowest = math.ceil(num_clients * self.center) - size // 2
        lowest = max(0, min(lowest, most + 1 - size))
        sums: Ints = ((residues.astype(np.int64) - lowest) & (size - 1)) + lowest
        if sums.size and int(sums.max()) > most:
            raise CodeOverflowError(
                f"a sum of {num_clients} codes lies in 0..{most}, received the residue of {int(sums.max())}; "
                f"the number of clients or the payload is wrong"
            )
        return sums


@lru_cache(maxsize=64)
def find_narrowest_ring(
    codebook: Codebook, distribution: OutputDistribution | None, num_clients: int, dimension: int
) -> SumRing:
    """The narrowest ring in which none of ``dimension`` honest sums wraps, except for :data:`WRAP_ODDS`.

    Without a distribution of a coordinate, or where no ring is narrower, the result is the ring of all sums.
    """
    every = SumRing(codebook.sum_bits(num_clients), codebook.max_code)
    if distribution is None or distribution.rows.size > _MAX_NUMBERS:
        return every
    center = -codebook.offset / codebook.step
    deviations = codebook.codes.astype(np.float64) - center
    log_odds = math.log(2.0 * dimension / WRAP_ODDS)
    reach = honest_reach(deviations, distribution.rows, num_clients, log_odds)
    # The window is one larger, because its middle is rounded to a whole number.
    bits = math.ceil(reach + 1.0).bit_length() + 1
    return every if bits >= every.bits else SumRing(bits, None, center, codebook.max_code)


def honest_reach(deviations: Floats, rows: Floats, num_clients: int, log_odds: float) -> float:
    """A two-sided bound that the sum of ``num_clients`` draws exceeds with odds of at most exp(-log_odds).

    Each draw is one of the (m,) ``deviations``, by any of the (r, m) distributions in ``rows`` or a mixture
    of them.
    """
    scale = math.sqrt(float((rows @ deviations**2).max()))
    if scale == 0.0:
        return 0.0
    rates = _RATES * (math.sqrt(2.0 * log_odds / num_clients) / scale)
    reaches = []
    for signed in (deviations, -deviations):
        exponents = np.outer(signed, rates)
        largest = exponents.max(axis=0)
        moments = np.log((rows @ np.exp(exponents - largest)).max(axis=0)) + largest
        reaches.append(float(((num_clients * moments + log_odds) / rates).min()))
    return min(max(reaches), num_clients * float(np.abs(deviations).max())) * _FLOAT_ROOM
