"""Sums of bits for the secure sum, with the largest theta that a privacy target allows.

A code is the sum of ``trials`` bits. Each bit is 1 with probability 1/2 - theta (the lower row) or
1/2 + theta (the upper row); a larger theta means less noise and less privacy. In the Poisson binomial
mechanism the row of each bit is chosen independently, and the squared error is (1 / (4 theta^2) - x^2) /
trials. With *stratified* bits the number of bits from the upper row is fixed, except that it is rounded at
random. With f the fractional part that is rounded, the squared error is then

    (1 / (4 theta^2) - 1) / trials + 4 f (1 - f) / trials^2,

which is never more, and nearly the same at all inputs. The certificate of both is the same
(:mod:`fl_privquant.loss.two_row_sums`). So the noise of the sum over all clients is close to normal noise of
the same variance at all inputs, which is not true for tables with as many levels.

**A limit for tables.** No table of two rows with certified separation a for n clients has an error below
1 / (n a^2) + 1 - E x^2. With all other clients at one end, the Fisher information of the sum about an input
is at most a^2. So by Cramér and Rao a code's variance there is at least 1 / (n a^2), and its second moment is
the same at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.law.table import TOTAL_WEIGHT
from fl_privquant.loss.two_row_sums import TwoRows, sum_separation

_HALF = TOTAL_WEIGHT // 2
# The search ends when the separation is this close to the required one, as a share.
_CLOSE = 1e-5
_MOST_STEPS = 60
_SHRINK = 0.8
# Below this, rows of 32-bit weights hardly differ.
_LEAST_THETA = 1e-8
# If the error is more than this many times that of a central Gaussian, fewer bits are tried as well.
_LAX = 1.1
# With up to this many bits of all clients together, a certificate takes some seconds.
_MOST_DRAWS = 1_000_000


def error_of_strata(trials: int, rare: int, rounding: float) -> float:
    """Mean squared error of a code of stratified bits, in units of clip^2.

    ``rounding`` is the mean of f (1 - f) over the inputs: the variance of the number of bits from the upper
    row.
    """
    theta = (_HALF - rare) / TOTAL_WEIGHT
    return (0.25 / theta**2 - 1.0) / trials + 4.0 * rounding / trials**2


def error_of_bits(trials: int, rare: int, input_variance: float) -> float:
    """Mean squared error of the Poisson binomial mechanism, for inputs of mean square ``input_variance``."""
    theta = (_HALF - rare) / TOTAL_WEIGHT
    return (0.25 / theta**2 - input_variance) / trials


def least_error_of_tables(separation: float, input_variance: float, num_honest: int) -> float:
    """A lower bound on the error of every table of two rows at that separation, proved above."""
    return 1.0 / (num_honest * separation**2) + 1.0 - input_variance


def numbers_of_trials(most: int, num_honest: int) -> list[int]:
    """Numbers of bits of a code that are worth trying, the largest first.

    The largest is ``most``, or fewer if a certificate for ``num_honest`` clients would take too long. Each of
    the others is half of the one before, rounded down.

    >>> numbers_of_trials(15, 100), numbers_of_trials(255, 10_000)
    ([15, 7, 3, 1], [100, 50, 25, 12, 6, 3, 1])
    """
    largest = max(min(most, _MOST_DRAWS // num_honest), 1)
    return [largest >> halvings for halvings in range(largest.bit_length())]


@dataclass(frozen=True)
class SumOfBitsDesign:
    """A sum of bits that meets a privacy target."""

    trials: int
    """Number of bits per code."""
    rare: int
    """Weight, of 2^32, of the less likely value of a bit."""
    error: float
    """Mean squared error, in units of clip^2 unless the function that returns it says otherwise."""


def least_error_bits(
    most: int,
    separation: float,
    num_honest: int,
    rate: float,
    error: Callable[[int, int], float],
    stratified: bool,
) -> SumOfBitsDesign | None:
    """The sum of at most ``most`` bits with the least error at that separation; None where there is none.

    ``error`` gives the error for a number of trials and a weight of the rare bit.
    """
    best: SumOfBitsDesign | None = None
    for trials in numbers_of_trials(most, num_honest):
        try:
            rare = bits_for_separation(trials, separation, num_honest, rate, stratified=stratified)
        except InfeasibleDesignError:
            continue
        design = SumOfBitsDesign(trials, rare, error(trials, rare))
        if best is not None and design.error >= best.error:
            break
        best = design
        # Fewer bits are better only where a single coordinate reveals much.
        if best.error <= _LAX / (num_honest * separation**2):
            break
    return best


def bits_for_separation(
    trials: int,
    separation: float,
    num_honest: int,
    rate: float,
    *,
    stratified: bool = True,
    rough: bool = False,
) -> int:
    """The least weight of the rare bit, of 2^32, whose certified separation is at most ``separation``.

    Raises InfeasibleDesignError where there is none. With ``rough`` the separation is only probed, not
    certified, which is enough to compare designs.
    """
    # Start from the theta that would be right if the noise were normal.
    theta = 0.5 / math.sqrt(1.0 + trials / (num_honest * separation**2))
    for probed in (True,) if rough else (True, False):

        def excess(theta: float, probed: bool = probed) -> float:
            law = TwoRows.bit(_rare(theta))
            return math.log(sum_separation(law, num_honest, rate, trials, stratified, probed) / separation)

        theta = _largest(excess, theta)
        if theta == 0.0:
            raise InfeasibleDesignError(out_of_reach(f"sum of {trials} bits", separation, num_honest))
    return _rare(theta)


def out_of_reach(design: str, separation: float, num_honest: int) -> str:
    """The error text for a privacy target that no design of a kind meets."""
    return (
        f"separation {separation:.3g}: no {design} hides one of {num_honest} clients that well; raise the "
        "target's epsilon or delta, or the number of clients, or lower the number of rounds"
    )


def _rare(theta: float) -> int:
    """The weight of the rare bit, of 2^32, for this theta, rounded to the private side."""
    return min(max(math.ceil((0.5 - theta) * TOTAL_WEIGHT), 1), _HALF - 1)


def _largest(excess: Callable[[float], float], theta: float) -> float:
    """About the largest theta with an excess of 0 or less, found from a guess; 0 if there is none.

    The excess grows at least about as fast as the logarithm of theta, up to some times as fast, and may jump.
    """
    low, high, power = 0.0, 0.5, 1.0
    last: tuple[float, float] | None = None
    for _ in range(_MOST_STEPS):
        excess_here = excess(theta)
        low, high = (theta, high) if excess_here <= 0.0 else (low, theta)
        if -_CLOSE <= excess_here <= 0.0 or high - low <= 0.2 * _CLOSE * high or high < _LEAST_THETA:
            break
        if last is not None and math.isfinite(excess_here) and theta != last[0]:
            power = min(max((excess_here - last[1]) / math.log(theta / last[0]), 0.7), 6.0)
        last = (theta, excess_here) if math.isfinite(excess_here) else last
        guess = theta * math.exp(-(excess_here + 0.5 * _CLOSE) / power) if math.isfinite(excess_here) else 0.0
        theta = guess if low < guess < high else math.sqrt(max(low, _SHRINK**2 * high) * high)
    return low
