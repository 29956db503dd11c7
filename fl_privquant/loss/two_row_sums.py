r"""Secure sums of laws with two rows, counted without a blanket: the exact worst case over the other clients.

The server sees, for each coordinate, the sum of the codes of ``n`` honest clients. A law of *two rows* draws
a client's code from the mixture r_u = (1 - u) low + u high, with a share u in [0, 1] that is linear in its
input: one bit, or any table with one piece. This module certifies the same as
:mod:`fl_privquant.loss.secure_sum`, a **separation** a for a given rate b: for inputs of one client at
distance D, whatever the others' inputs, the two laws of the sum are no easier to tell apart than N(0, 1) and
N(a D, 1), except for a probability b D. That module tells the adversary which clients drew from the blanket;
here it is told nothing.

Proof
-----
*Notation.* v = abs(u - u') is the distance of the two shares, z = (u + u') / 2 their middle, Q the law of the
sum of the others, * the convolution, and H_e the hockey-stick divergence.

1. *Others at knots.* The two laws of the sum are r_(z + v/2) * Q and r_(z - v/2) * Q. For fixed v and e, H_e
   is the sum over outputs of max(first - e second, 0); both are linear in the row of *each* other client,
   the others fixed, and in z. So H_e is convex in each of these numbers, and is largest where each is at an
   end of its interval: every other client at one of the two rows, and z at one end of [v/2, 1 - v/2]. Of the
   others only the number that are at the upper row matters: n cases, each an exact convolution.
2. *Cells.* For v in a cell (p, t] let z be at an end of the larger interval [p/2, 1 - p/2]. The rows
   r_(z +- v/2) may then lie beyond the two rows of the law, by (t - p) / 2 at most; cells are so many that
   they have no negative entry there.
3. *One check a cell.* Let s v be what is spared at distance v. A set of outputs that has probability y at
   r_z * Q has y + v h / 2 and y - v h / 2 at the two laws, for all v with one h. The sets of largest
   likelihood ratio are the same for all v. With w = h - 2 s and c = Phi^-1, the quotient
   (c(y + v w / 2) - c(y - v w / 2)) / v grows with v: it is w times the mean of c' over an interval with
   y in its middle, and c' is convex. So if :func:`~fl_privquant.loss.normal_pairs.pair_separation` finds m
   for all sets at v = t, then m / t serves all v in the cell. The largest m / t of all cells and cases is the
   separation for shares.
4. *Bits.* The code is the sum of k draws from r_u (the Poisson binomial mechanism). Take all n k draws for
   coordinates as above, and let those of the protected client go from u to u' one after the other. In
   each step all other draws are from mixtures of the two rows, so that it has the separation of n k clients
   with one draw each. The chain of k steps has k times that separation, with what is spared carried along
   (:mod:`fl_privquant.loss.normal_pairs`).
5. *Stratified bits.* The code is again the sum of k draws, but of a share u the first m = floor(k u) are from
   the upper row, the next is from r_(k u - m), and the others are from the lower row: the mean is the same,
   and its variance is the same at all knots m / k. From u to u' the draws change one after the other, only
   one of them at a time, by lengths that add up to k v and are 1 except for the first and the last; all
   others are at one of the two rows. This is a chain as in step 4, with steps of unequal length
   (:mod:`fl_privquant.loss.normal_pairs`), and has the same separation.
6. *Updates.* As in step 5 of :mod:`fl_privquant.loss.secure_sum`, normal pairs add up by squares over
   coordinates and rounds. What is spared is in proportion to v, and so is what it grows to: with
   z^2 = 2 log(1 / (2 s v)), v z and v sqrt(z^2 + 4) grow with v, so that the factors e^(m L) are largest at
   v = 1, for which :func:`~fl_privquant.loss.normal_pairs.spare_for` is asked.

*Fewer cases.* :mod:`fl_privquant.loss.grouped_cases` bounds many cases at once.

*Corrupt and lost clients* are not counted among the n: what they send is known, or missing, and shifts the
sum. A law whose rows and codes mirror needs half of the cases: mirroring exchanges the two rows, and the
order of the two laws, for which the check is the same.

*Rounding.* Rows are multiples of 2^-32, exact in floating point. Convolutions add positive terms only; their
relative error and cut tails (:mod:`fl_privquant.law.lattice`) enlarge the power of every test and make its
level smaller. Nothing is charged beside the rate.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fl_privquant.loss.grouped_cases import MOST_CELLS, OtherClients, TwoRows
from fl_privquant.loss.normal_pairs import spare_for

__all__ = ["TwoRows", "sum_separation"]

# Points of a sum beyond which nothing is certified: it would take too long.
_MOST_POINTS = 1 << 14
# Above this number fewer clients are counted, which is a bound too.
_MOST_COPIES = 1 << 20
# Largest separation of a whole client that is tried, and the factor by which guesses are enlarged.
_LARGEST, _ROOM = 4.0, 1.25
# With less than this to spare, far above what is cut off, nothing is certified.
_LEAST_SPARE = 1e-26
# Covers the rounding of a limit that is divided and multiplied again.
_BEYOND = 1.0 + 1e-15


@lru_cache(maxsize=256)
def sum_separation(
    law: TwoRows,
    num_honest: int,
    rate: float,
    bits: int = 1,
    stratified: bool = False,
    probed: bool = False,
    enough: float = math.inf,
) -> float:
    """The least certified a for the rate b: inputs at distance D differ as N(0, 1) and N(a D, 1) do.

    Infinite where nothing is certified. It is computed in this process, never read from a file.

    ``num_honest`` clients have their codes in the sum, the protected one included. Two inputs at distance D
    may reveal everything with probability ``rate`` * D. Each code is the sum of so many ``bits``, draws from
    the law for one input: ``stratified`` as in step 5, or with the same share each, as in step 4. With
    ``probed``, only two cases of the other clients are looked at: that is quick, and close enough to compare
    designs, but *no guarantee*. What is probed ends once it is known to reach ``enough``, with some number
    that does.
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
        limit = enough / (bits * law.slope) * _BEYOND
        separation = bits * (others.probed(limit) if probed else others.worst())
        if probed and separation * law.slope >= enough:
            # A larger guess below would leave less to spare, and so separate more.
            return separation * law.slope
        if separation <= most:
            return separation * law.slope
        most = _ROOM * separation
    return math.inf


def _guess(law: TwoRows, copies: int) -> float:
    """About the separation of the two rows: the difference of their means over the deviation of the sum."""
    means = [float(row @ law.codes) for row in (law.low, law.high)]
    variances = [
        float(row @ (law.codes - mean) ** 2) for row, mean in zip((law.low, law.high), means, strict=True)
    ]
    return abs(means[1] - means[0]) / math.sqrt(copies * max(min(variances), 1e-12))
