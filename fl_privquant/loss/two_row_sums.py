r"""Secure sums of laws with two rows, counted without a blanket: the exact worst case over the other clients.

The server sees, for each coordinate, the sum of the codes of ``n`` honest clients. A law of *two rows* draws
a client's code from the mixture r_u = (1 - u) low + u high of two fixed rows of probabilities. The share u in
[0, 1] is linear in the client's input. Examples are one bit, or any table with one piece.

This module certifies the same as :mod:`fl_privquant.loss.secure_sum`, a **separation** a for a given rate b:
for two inputs of one client at distance D, whatever the inputs of the other clients, the two laws of the sum
are no easier to tell apart than N(0, 1) and N(a D, 1), except for a probability b D. The proof in that module
tells the adversary which clients drew from the blanket, and so gives some privacy away. The proof here tells
the adversary nothing but the sum.

Proof
-----
*Notation.* u and u' are the two shares of the protected client, v = abs(u - u') is their distance and
z = (u + u') / 2 their middle. Q is the law of the sum of the other clients' codes, * the convolution, and H_e
the hockey-stick divergence for the factor e = exp(epsilon).

1. *The other clients are at the two rows in the worst case.* The two laws of the sum are r_(z + v/2) * Q and
   r_(z - v/2) * Q. For fixed v and e, H_e is the sum over outputs of max(first - e second, 0). Both laws
   are linear in the row of *each* other client, if the rest are fixed, and linear in z. So H_e is convex
   in each of these arguments, and is largest where each is at an end of its interval: every other client at
   one of the two rows, and z at one end of [v/2, 1 - v/2]. Only the number of the other clients that are at
   the upper row matters. This leaves n cases, each an exact convolution.
2. *Cells of distances.* Let v be in a cell (p, t], and take z at an end of the larger interval
   [p/2, 1 - p/2], which covers the ends for all v of the cell. The rows r_(z +- v/2) may then lie beyond the
   two rows of the law, by (t - p) / 2 at most. There are enough cells that these rows have no negative entry.
3. *One check per cell.* Let s v be the slack at distance v. A set of outputs that has probability y under
   r_z * Q has y + v h / 2 and y - v h / 2 under the two laws, for all v with one h. The sets of largest
   likelihood ratio are the same for all v. With w = h - 2 s and c = Phi^-1, the quotient
   (c(y + v w / 2) - c(y - v w / 2)) / v grows with v: it is w times the mean of c' over an interval with
   y in its middle, and c' is convex. So if :func:`~fl_privquant.loss.normal_pairs.pair_separation` finds m
   for all sets at v = t, then m / t serves all v in the cell. The largest m / t of all cells and cases is the
   separation for shares at distance 1.
4. *Sums of bits.* The code is the sum of k draws from r_u (the Poisson binomial mechanism). Treat each of the
   n k draws like a client above, and let the draws of the protected client go from u to u' one after
   the other. In each step all other draws are from mixtures of the two rows, so the step has the separation
   of n k clients with one draw each. The chain of k steps has k times that separation, with the slack carried
   along (:mod:`fl_privquant.loss.normal_pairs`).
5. *Stratified bits.* The code is again the sum of k draws. For a share u the first m = floor(k u) of them are
   from the upper row, the next one is from r_(k u - m), and the rest are from the lower row. The mean is the
   same as in step 4. For rows that mirror each other, the variance is the same at all knots u = m / k. From u
   to u' the draws change one at a time, by lengths that add up to k v and are 1 except for the first and the
   last; meanwhile every other draw is at one of the two rows. This is a chain as in step 4, with steps of
   unequal length (:mod:`fl_privquant.loss.normal_pairs`), and has the same separation.
6. *Whole updates.* As in step 5 of :mod:`fl_privquant.loss.secure_sum`, squared separations of normal pairs
   add up over coordinates and rounds. The slack is in proportion to v, and so is what it grows to in a chain:
   with z^2 = 2 log(1 / (2 s v)), v z and v sqrt(z^2 + 4) grow with v, so that the factors e^(m L) of
   :mod:`fl_privquant.loss.normal_pairs` are largest at v = 1, for which its function ``spare_for`` is called.

*Fewer cases.* :mod:`fl_privquant.loss.grouped_cases` bounds many of the n cases at once. If the rows and the
codes of a law mirror each other, half of the cases are enough: mirroring exchanges the two rows, and the
order of the two laws, for which the check is the same.

*Corrupt and lost clients* are not counted among the n: what they send is known, or missing, and only shifts
the sum.

*Rounding.* Rows are multiples of 2^-32, exact in floating point. Convolutions add positive terms only. Their
relative error and cut tails (:mod:`fl_privquant.law.lattice`) are added to the power of every test and taken
off its level. No probability is charged besides the rate.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fl_privquant.loss.grouped_cases import MOST_CELLS, OtherClients, TwoRows
from fl_privquant.loss.normal_pairs import spare_for

__all__ = ["TwoRows", "sum_separation"]

# Laws whose sum has more points than this are not certified: it would take too long.
_MOST_POINTS = 1 << 14
# At most this many draws are counted in a sum. Counting fewer than there are is a bound too.
_MOST_COPIES = 1 << 20
# Largest separation of a whole client that is tried, and the factor by which guesses of it are enlarged.
_LARGEST, _ROOM = 4.0, 1.25
# The least slack of a step. It is far above the tails that are cut off; with less, nothing is certified.
_LEAST_SPARE = 1e-26


@lru_cache(maxsize=256)
def sum_separation(
    law: TwoRows, num_honest: int, rate: float, bits: int = 1, stratified: bool = False, probed: bool = False
) -> float:
    """The least certified separation a for the rate b; infinite where nothing is certified.

    Two inputs of one client at distance D are then as hard to tell apart as N(0, 1) and N(a D, 1), except for
    a probability ``rate`` * D. The figure is computed in this process, never read from a file.

    ``num_honest`` clients have their codes in the sum, the protected one included. Each code is the sum of
    ``bits`` draws from the law for one input: all with the same share, as in step 4 of the proof, or
    ``stratified``, as in step 5. With ``probed``, only two cases of the other clients are computed: that is
    quick, and close enough to compare designs, but *no guarantee*.
    """
    copies = min(num_honest * bits, _MOST_COPIES - _MOST_COPIES % bits)
    if copies < 2 * bits or law.num_cells > MOST_CELLS or law.width(copies) > _MOST_POINTS:
        return math.inf
    most = _ROOM * bits * _guess(law, copies)
    while most <= _LARGEST:
        spare = spare_for(min(rate / law.slope, 0.5), bits, most, unequal=stratified and bits > 1)
        if spare < _LEAST_SPARE:
            return math.inf
        others = OtherClients(law, copies - 1, spare)
        separation = bits * (others.probed() if probed else others.worst())
        if separation <= most:
            return separation * law.slope
        most = _ROOM * separation
    return math.inf


def _guess(law: TwoRows, copies: int) -> float:
    """About the separation of the two rows: the difference of their means over the sum's deviation."""
    means = [float(row @ law.codes) for row in (law.low, law.high)]
    variances = [
        float(row @ (law.codes - mean) ** 2) for row, mean in zip((law.low, law.high), means, strict=True)
    ]
    return abs(means[1] - means[0]) / math.sqrt(copies * max(min(variances), 1e-12))
