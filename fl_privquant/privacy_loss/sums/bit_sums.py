"""Sums of bits of randomized response: the loss of one client's bits, alone and in sums over clients.

For a coordinate with input x a client draws a number of independent bits, each 1 with probability
1/2 + theta x, and sends their sum, whose distribution is binomial. Its likelihood ratios are monotone in x,
so every hockey-stick curve is largest between x = -1 and x = 1 (a set of largest ratios is a set of largest
codes, whose probability grows with x). In the sum over n clients, each bit of the n - 1 others is a fair coin
with probability 2 rare / 2^32, whatever the input. This is the privacy blanket of
:mod:`fl_privquant.privacy_loss.sums.blanket`, bit by bit.

**The theorem** (Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
Secure Aggregation", ICML 2022) is about the Rényi divergence of a sum of n codes, which
:func:`aggregate_renyi` computes at the worst inputs. It takes into account that the other clients' bits hide
more than their blanket does, which matters where bits are far from fair. The blanket in turn gives the
distribution of the loss, not only its moments. With many bits it takes too long to compute all cases; then
fewer clients are counted, which is a bound too. The theorem also applies to a table of two output values,
which is randomized response (:func:`theta_of_two_levels`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy

from fl_privquant import _validation
from fl_privquant._array_types import Array, Floats
from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.distributions.integer_distribution import IntegerDistribution
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.composition.compose import NamedLoss
from fl_privquant.privacy_loss.composition.loss_distribution import ROUNDING, PrivacyLoss
from fl_privquant.privacy_loss.sums.blanket import BlanketDraws, bound_covered_loss
from fl_privquant.statement import Relation

_MAX_TRIALS_IN_SUM = 1 << 12
# Accuracy of scipy's binomial probabilities.
_BINOMIAL = 1e-11
# How far the probability of a one may be from 1/2 for the input 0.
_NEXT_TO_FAIR = 2.0**-25
# Covers the rounding of binomial probabilities, which are right to some 11 digits.
_FLOAT_ROOM = 1.0 + 1e-7
_SMALL = 1e-4
# The most bits in a sum for which all cases are computed, which takes about a second for all orders.
_MAX_BITS = 1024
_RATES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def sum_of_bits_loss(
    trials: int,
    rare: int,
    epsilon: float,
    num_honest: int = 1,
    relation: Relation = Relation.REPLACE_ONE,
) -> PrivacyLoss:
    """The loss of one coordinate, in the sum of ``num_honest`` honest clients; 1 is the local view.

    The coordinate has ``trials`` bits, which together have the certified pure ``epsilon``. At x = -1 a bit is
    1, and at x = 1 it is 0, with the integer weight ``rare`` of 2^32. At x = 0 it is a fair coin.
    """
    codes = np.arange(trials + 1)
    share = rare / TOTAL_WEIGHT
    # A code of k ones has (2 k - trials) times the loss of one bit.
    losses = (2.0 * codes - trials) * (epsilon / trials)
    local = PrivacyLoss(
        np.minimum(losses * (1.0 + ROUNDING), epsilon), binomial(codes, trials, 1.0 - share), 0.0, _BINOMIAL
    )
    to_zero = relation is not Relation.REPLACE_ONE
    if num_honest == 1 and not to_zero:
        return local
    rows = np.stack([binomial(codes, trials, success) for success in (share, 1.0 - share)])
    coin = IntegerDistribution(0, np.array([0.5, 0.5]))
    draws = BlanketDraws(coin, (num_honest - 1) * trials, 2.0 * share)
    # Inputs so close to 0 that the sampler could take them for it are included.
    near = 0.5 + np.array([-1.0, 1.0]) * _NEXT_TO_FAIR
    zeros = np.stack([binomial(codes, trials, success) for success in near]) if to_zero else None
    return bound_covered_loss(rows, codes, draws, local, _BINOMIAL, zeros)


@dataclass(frozen=True, eq=False)
class ChordMoments:
    """Moments of a loss, from bounds at a few orders.

    Rates are orders minus one, and ``values`` bound the rate times the divergence. That product is convex in
    the rate, so that chords between these bounds are bounds too.

    >>> moments = ChordMoments(np.array([1.0, 2.0]), np.array([0.5, 2.0]), 3.0)
    >>> [round(moments.log_moment(rate), 9) for rate in (0.5, 1.5, 10.0)]
    [0.25, 1.25, 30.0]
    """

    rates: Floats
    values: Floats
    max_loss: float
    infinity: float = 0.0

    def log_moment(self, rate: float) -> float:
        """Upper bound of log E exp(rate * loss)."""
        if rate > self.rates[-1]:
            return rate * self.max_loss
        rates, values = np.append(0.0, self.rates), np.append(0.0, self.values)
        return float(np.interp(rate, rates, values)) * (1.0 + 1e-12)


def poisson_binomial_losses(
    trials: int, theta: float, epsilon: float, dimension: int, num_honest: int
) -> list[NamedLoss]:
    """The loss of an update of any norm by the theorem; an empty list where the theorem does not apply.

    A coordinate has ``trials`` bits, whose probabilities are within ``theta`` of 1/2, and a certified pure
    ``epsilon``.
    """
    counted = min(num_honest, _MAX_BITS // trials)
    if counted < 2 or not 0.0 < theta < 0.5:
        return []
    return [NamedLoss(_poisson_binomial(trials, theta, counted, epsilon), "poisson binomial", dimension)]


def theta_of_two_levels(table: CertifiedTable) -> float:
    """The theta of a table of two output values, taken as a bit of randomized response.

    Every row lies between the two extreme rows. So the larger of their two distances to 1/2 bounds that of
    all rows.
    """
    rare = int(table.weights.min())
    return math.nextafter((TOTAL_WEIGHT // 2 - rare) / TOTAL_WEIGHT, 1.0)


@lru_cache(maxsize=64)
def _poisson_binomial(trials: int, theta: float, num_honest: int, max_loss: float) -> ChordMoments:
    """Moments by the theorem."""
    orders = tuple(rate + 1.0 for rate in _RATES)
    divergences = _largest_divergences(trials, theta, num_honest, orders)
    return ChordMoments(np.array(_RATES), np.array(_RATES) * divergences, max_loss)


def aggregate_renyi(trials: int, theta: float, num_clients: int, order: float) -> float:
    """Largest Rényi divergence of the sum of ``num_clients`` codes when one client's input is replaced.

    It is computed by convolution, exactly except for rounding, which is upwards. The worst inputs are:

    * *The replaced client: 1 and -1.* Compare two sums of independent bits, in the first of which one
      client's bits are more likely to be 1. Their likelihood ratio rises with the sum. So the divergence
      grows as that client's probabilities move apart.
    * *The other clients: some number of their bits as at 1, the rest as at -1.* Whatever a client's input,
      each of its bits is a mixture of the bit at x = 1 and the bit at x = -1, and divergences are jointly
      quasi-convex. Which number is the worst is not known, so all are tried. (Whole clients at 1 or -1
      are among these cases, so the figure is attained or nearly so.)
    * *One direction is enough:* the divergence from the input 1 to -1 mirrors that from -1 to 1.

    >>> alone = aggregate_renyi(3, 0.1, 1, 2.0)
    >>> together = aggregate_renyi(3, 0.1, 10, 2.0)
    >>> round(alone, 4), round(together, 4)
    (0.4625, 0.0508)
    """
    _validation.check_integer("num_clients", num_clients, 1)
    if num_clients * trials > _MAX_TRIALS_IN_SUM:
        raise InvalidSpecError(
            "num_clients",
            num_clients,
            f"clients of {trials} trials are more than {_MAX_TRIALS_IN_SUM} bits, for which the "
            "exact divergence takes too long",
            "count fewer clients, whose divergence is an upper bound for more clients",
        )
    _validation.check_in_interval("order", order, "(1, inf)")
    _validation.check_in_interval("theta", theta, "(0, 0.5)")
    return float(_largest_divergences(trials, theta, num_clients, (order,))[0])


def _largest_divergences(trials: int, theta: float, num_clients: int, orders: tuple[float, ...]) -> Floats:
    """The divergence of :func:`aggregate_renyi` for each order."""
    loss = trials * math.log((1.0 + 2.0 * theta) / (1.0 - 2.0 * theta))
    # The probability at which tails are cut off. A divergence weights them by some e^((order + 1) loss).
    log_cut = max(-690.0, -((max(orders) + 1.0) * loss + 60.0))
    worst = np.zeros(len(orders))
    # For every N, compare the sum with N bits as at 1 to the sum with N + trials such bits.
    earlier: deque[_Sum] = deque(maxlen=trials)
    for later in _all_sums(num_clients * trials, theta, log_cut):
        if len(earlier) == trials:
            divergences = [_divergence(later, earlier[0], loss, order, log_cut) for order in orders]
            worst = np.maximum(worst, divergences)
        earlier.append(later)
    return worst


class _Sum(NamedTuple):
    """A sum of bits: its smallest value, and the probabilities from there on, far tails cut off."""

    start: int
    pmf: Floats


def _all_sums(count: int, theta: float, log_cut: float) -> Iterator[_Sum]:
    """The sums of ``count`` bits of which N are as at input 1 and the rest as at -1, for N = 0..count."""
    likely = [_binomial_sum(number, 0.5 + theta, log_cut) for number in range(count + 1)]
    for ones, (start, pmf) in enumerate(likely):
        zeros = count - ones
        # Bits as at -1 are 0 as often as those as at 1 are 1.
        mirrored = likely[zeros]
        first = zeros - (mirrored.start + mirrored.pmf.size - 1)
        yield _Sum(start + first, np.convolve(pmf, mirrored.pmf[::-1]))


def _binomial_sum(count: int, success: float, log_cut: float) -> _Sum:
    # By Hoeffding, the number of successes is further from its mean with probability at most 2 e^log_cut.
    reach = math.sqrt(-log_cut * count / 2.0) + 1.0
    low, high = max(0, math.floor(count * success - reach)), min(count, math.ceil(count * success + reach))
    return _Sum(low, binomial(np.arange(low, high + 1), count, success))


def _divergence(first: _Sum, second: _Sum, loss: float, order: float, log_cut: float) -> float:
    """Upper bound of D_order(first || second), for sums whose ratios are within e^±loss."""
    low = max(first.start, second.start)
    high = min(first.start + first.pmf.size, second.start + second.pmf.size)
    p = first.pmf[low - first.start : high - first.start]
    q = second.pmf[low - second.start : high - second.start]
    # Next to what was cut off the ratio is not known, so that such outputs count as tails. There q is at most
    # five times the cut, times e^loss, and its excess at most q (e^(order loss) + order).
    likely = np.minimum(p, q) > math.exp(log_cut)
    tails = 100.0 * (p.size + 1) * math.exp(min((order + 1.0) * loss + log_cut, 600.0))
    p, q = p[likely], q[likely]
    with np.errstate(over="ignore", divide="ignore"):
        excess = float((q * _power_excess(p / q - 1.0, order)).sum()) + tails
    return min(math.log1p(excess) / (order - 1.0) * _FLOAT_ROOM, loss)


def _power_excess(h: Floats, order: float) -> Floats:
    """(1 + h)^a - 1 - a h, without cancellation where h is small."""
    small = np.abs(h) < _SMALL / order
    if not small.any():
        return np.asarray(np.expm1(order * np.log1p(h)) - order * h)
    series = order * (order - 1.0) / 2.0 * h**2 * (1.0 + (order - 2.0) / 3.0 * h)
    return np.where(small, series, np.expm1(order * np.log1p(h)) - order * h)


def binomial(successes: Array, trials: int, success: Any) -> Floats:
    """Binomial probabilities of numbers of successes."""
    return np.asarray(scipy.stats.binom.pmf(successes, trials, success))
