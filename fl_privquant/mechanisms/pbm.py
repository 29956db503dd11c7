"""PBM: the Poisson binomial mechanism, a number of successes whose probability is linear in the input.

For input x in [-1, 1] the code is Binomial(trials, 1/2 + theta x), and the estimate is (code - trials /
2) / (trials theta), unbiased. The codes are 0..trials: ``levels`` = trials + 1. The sum of the codes of
n clients is a Poisson binomial variable of n * trials trials, whatever the inputs: bounded, and never
wrapped.

It is sampled as it is defined: ``trials`` times, a bit is drawn from a certified table with two rows,
of integer weights, that of x = 1 with probability (1 + x) / 2. So the law is exactly binomial, with a
theta that is a rational number, and both guarantees are for what is sampled, not for a rounding of it.

Guarantee: ``epsilon`` = trials log((1 + 2 theta) / (1 - 2 theta)) for each coordinate and release,
local view, certified in integers: each trial is randomized response, and all trials 1 (or 0) is the
output that attains it. :func:`aggregate_renyi` bounds what the secure sum over n clients reveals of one
of them, whatever the others' inputs.
Assumes: nothing about the inputs. For the sum: n clients that draw as they should; subtract corrupt and
dropped ones.
Reference: Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
Secure Aggregation", ICML 2022.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.law.density import Density, as_density
from fl_privquant.law.law import Law
from fl_privquant.law.table import TOTAL_WEIGHT
from fl_privquant.mechanisms.registry import Spec, checked_epsilon, checked_levels, register
from fl_privquant.mechanisms.sum_of_bits import SumOfBits, loss_of_bits
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.sampling.stream import RandomStream

__all__ = ["PbmMechanism", "PbmSpec", "aggregate_renyi", "design_pbm"]

Floats = NDArray[np.float64]

_HALF = TOTAL_WEIGHT // 2
_LAW_KNOTS = 129
_ERROR_PANELS = 512
_MOST_TRIALS_IN_SUM = 1 << 15
_BLOCK = 32
# Covers the rounding of binomial probabilities, which are right to some 11 digits.
_FLOAT_ROOM = 1.0 + 1e-7
_SMALL = 1e-4


@dataclass(frozen=True)
class PbmSpec(Spec):
    """What PBM is asked to be; exactly one of ``epsilon``, ``theta`` and ``renyi`` is given.

    Parameters
    ----------
    epsilon
        Privacy loss of one coordinate, one release, local view.
    levels
        Number of codes: one more than trials.
    theta
        How much the probability of a success moves with the input, above 0 and below 1/2.
    renyi
        Rényi divergence of one coordinate, one release, *aggregate view*: what the sum over ``num_clients``
        clients may reveal of any one of them.
    order
        Order of that divergence.
    num_clients
        Number of clients whose codes are added up, for ``renyi``; the honest ones that stay.
    """

    epsilon: float | None = None
    levels: int = 16
    theta: float | None = None
    renyi: float | None = None
    order: float = 2.0
    num_clients: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("epsilon", "theta", "renyi") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidSpecError(
                f"epsilon, theta, renyi: give exactly one of them, not {' and '.join(given) or 'none'}"
            )
        if self.epsilon is not None:
            checked_epsilon(self.epsilon)
        checked_levels(self.levels)
        if self.theta is not None and not 0.0 < self.theta < 0.5:
            raise InvalidSpecError(f"theta: {self.theta} is not above 0 and below 0.5")
        if self.renyi is not None:
            if not (math.isfinite(self.renyi) and self.renyi > 0.0):
                raise InvalidSpecError(f"renyi: {self.renyi} is not a finite number above 0")
            if self.num_clients is None:
                raise InvalidSpecError("num_clients: give the number of clients whose codes are added up")
            _checked_sum(self.levels - 1, self.num_clients, self.order)


@register("pbm", PbmSpec, cached=False)
def design_pbm(spec: PbmSpec) -> PbmMechanism:
    """The certified mechanism with the largest theta inside the target."""
    trials = spec.levels - 1
    if spec.epsilon is not None:
        rare = _rare_for_epsilon(trials, spec.epsilon)
        return PbmMechanism("pbm", trials, rare, float(spec.epsilon), spec.parameters())
    if spec.theta is not None:
        rare = max(round(TOTAL_WEIGHT * (0.5 - spec.theta)), 1)
    else:
        rare = _rare_for_renyi(trials, float(spec.renyi or 0.0), int(spec.num_clients or 0), spec.order)
    return PbmMechanism.of_bits("pbm", trials, rare, spec.parameters())


class PbmMechanism(SumOfBits, kind="pbm"):
    """Each bit is from the upper row with probability (1 + x) / 2; see :class:`SumOfBits`."""

    def pmf(self, x: ArrayLike) -> Floats:
        """(n, m) exact output probabilities for inputs in [-1, 1]."""
        inputs = np.clip(np.atleast_1d(np.asarray(x, dtype=np.float64)).ravel(), -1.0, 1.0)
        success = 0.5 + self.theta * inputs
        return _binomial(np.arange(self.num_levels), self.trials, success[:, None])

    @cached_property
    def law(self) -> Law:
        """The binomial rows at 129 inputs, linear in between.

        For privacy this is the mechanism itself: likelihood ratios are monotone, so that every divergence is
        worst between -1 and 1, whose rows are exact. Its errors are a hair above those of the mechanism.
        """
        knots = np.linspace(-1.0, 1.0, _LAW_KNOTS)
        return Law.from_knots(self.values, knots, self.pmf(knots))

    def mae(self, density: Density | ArrayLike | None = None) -> float:
        """Mean absolute error for inputs in [-1, 1], to 9 digits; uniform unless told."""
        inside = self.values[np.abs(self.values) < 1.0]
        breaks = np.unique(np.concatenate([np.linspace(-1.0, 1.0, _ERROR_PANELS + 1), inside]))
        nodes, weights = as_density(density).quadrature(breaks)
        return float(weights @ (self.pmf(nodes) * np.abs(self.values - nodes[:, None])).sum(axis=1))

    def mse(self, density: Density | ArrayLike | None = None) -> float:
        """Exact mean squared error for inputs in [-1, 1]: (1 / (4 theta^2) - E X^2) / trials."""
        nodes, weights = as_density(density).quadrature(np.array([-1.0, 1.0]))
        return (0.25 / self.theta**2 - float(weights @ nodes**2)) / self.trials

    def encode(
        self, x: ArrayLike, clip: float = 1.0, rng: RandomStream | None = None, threads: int = 1
    ) -> NDArray[Any]:
        """Random codes; takes ``trials`` words a coordinate from ``rng``."""
        stream = rng if rng is not None else RandomStream.secure()
        dtype = np.uint8 if self.num_levels <= 256 else np.uint16
        total: NDArray[Any] = np.asarray(
            self._sampler.encode(x, clip=clip, stream=stream, threads=threads)
        ).astype(dtype)
        for _ in range(self.trials - 1):
            total += self._sampler.encode(x, clip=clip, stream=stream, threads=threads)
        return np.asarray(total)

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.bit)


def aggregate_renyi(trials: int, theta: float, num_clients: int, order: float) -> float:
    """Largest Rényi divergence of the sum of ``num_clients`` codes when one client's input is replaced.

    Exact by convolution but for rounding, which is upwards, at inputs where the worst case lies:

    * The likelihood ratio of two sums of independent bits, one client's more likely to be 1 in the
      first, rises with the sum. So the divergence grows as that client's probabilities move apart: its
      inputs are 1 and -1.
    * Each bit of another client is a mixture of the bit at x = 1 and the bit at x = -1, whatever its
      input, and divergences are jointly quasi-convex. So the worst case is some number of the others'
      bits as at 1, the rest as at -1. No order among these numbers is known: all are tried. (Whole
      clients at 1 or -1 are among them, so the figure is attained or nearly so.)
    * The divergence from the input 1 to -1 mirrors that from -1 to 1.

    >>> alone = aggregate_renyi(3, 0.1, 1, 2.0)
    >>> together = aggregate_renyi(3, 0.1, 10, 2.0)
    >>> round(alone, 4), round(together, 4)
    (0.4625, 0.0508)
    """
    _checked_sum(trials, num_clients, order)
    if not 0.0 < theta < 0.5:
        raise InvalidSpecError(f"theta: {theta} is not above 0 and below 0.5")
    loss = trials * math.log((1.0 + 2.0 * theta) / (1.0 - 2.0 * theta))
    # The sum with N bits as at 1 is compared to the one with N + trials such bits, for every N.
    earlier: deque[_Sum] = deque(maxlen=trials)
    worst = 0.0
    for each in _all_sums(num_clients * trials, theta, _cut(loss, order)):
        if len(earlier) == trials:
            worst = max(worst, _divergence(each, earlier[0], loss, order))
        earlier.append(each)
    return worst


class _Sum(NamedTuple):
    """A sum of bits: its smallest value, and the probabilities from there on, far tails cut off."""

    start: int
    pmf: Floats


def _all_sums(count: int, theta: float, cut: float) -> Iterator[_Sum]:
    """The sums of ``count`` bits of which N are as at input 1 and the rest as at -1, for N = 0..count.

    In blocks: bits that are the same in a whole block of N are convolved once.
    """
    size = min(_BLOCK, count)
    few = [_bits(ones, size - ones, theta, cut) for ones in range(size + 1)]
    for first in range(0, count + 1, size + 1):
        first_of_block = min(first, count - size)
        core = _bits(first_of_block, count - size - first_of_block, theta, cut)
        for ones in range(first - first_of_block, size + 1):
            yield _Sum(core.start + few[ones].start, np.convolve(core.pmf, few[ones].pmf))


def _cut(loss: float, order: float) -> float:
    """Tails may be cut off here: in the divergence they weigh at most e^(order loss) more than in the sum."""
    return math.exp(max(-690.0, -(order * loss + 45.0)))


def _divergence(first: _Sum, second: _Sum, loss: float, order: float) -> float:
    """Upper bound of D_order(first || second), for sums whose ratios are within e^±loss."""
    low = max(first.start, second.start)
    high = min(first.start + first.pmf.size, second.start + second.pmf.size)
    p = first.pmf[low - first.start : high - first.start]
    q = second.pmf[low - second.start : high - second.start]
    there = (p > 0.0) & (q > 0.0)
    q = q[there]
    tails = math.exp(min(order * loss + math.log(16.0 * _cut(loss, order)), 700.0))
    with np.errstate(over="ignore", divide="ignore"):
        excess = float((q * _power_excess(p[there] / q - 1.0, order)).sum()) + tails
    return min(math.log1p(excess) / (order - 1.0) * _FLOAT_ROOM, loss)


def _bits(ones: int, zeros: int, theta: float, cut: float) -> _Sum:
    """The sum of ``ones`` bits as at input 1 and ``zeros`` bits as at -1."""
    parts = []
    for count, success in ((ones, 0.5 + theta), (zeros, 0.5 - theta)):
        # Hoeffding: the number of successes is further from its mean with probability 2 cut at most.
        reach = math.sqrt(-math.log(cut) * count / 2.0) + 1.0
        low = max(0, math.floor(count * success - reach))
        high = min(count, math.ceil(count * success + reach))
        parts.append((low, _binomial(np.arange(low, high + 1), count, success)))
    return _Sum(parts[0][0] + parts[1][0], np.convolve(parts[0][1], parts[1][1]))


def _power_excess(h: Floats, order: float) -> Floats:
    """(1 + h)^a - 1 - a h, without cancellation where h is small."""
    series = order * (order - 1.0) / 2.0 * h**2 * (1.0 + (order - 2.0) / 3.0 * h)
    small = np.abs(h) < _SMALL / order
    return np.where(small, series, np.expm1(order * np.log1p(h)) - order * h)


def _rare_for_epsilon(trials: int, epsilon: float) -> int:
    """The smallest weight of the rare bit that keeps the loss within epsilon."""
    rare = max(math.ceil(TOTAL_WEIGHT / (math.exp(min(epsilon / trials, 50.0)) + 1.0)), 1)
    while rare < _HALF and loss_of_bits(trials, rare) > epsilon:
        rare += 1
    if rare >= _HALF:
        raise InvalidSpecError(
            f"epsilon: {epsilon} is too small for {trials} trials with weights of 32 bits; lower levels"
        )
    return rare


def _rare_for_renyi(trials: int, renyi: float, num_clients: int, order: float) -> int:
    """The smallest weight of the rare bit that keeps the divergence of the sum within the target."""
    others = (num_clients - 1) * trials

    def probed(rare: int) -> float:
        theta = (_HALF - rare) / TOTAL_WEIGHT
        loss = loss_of_bits(trials, rare)
        cut = _cut(loss, order)
        at_one = _bits(others + trials, 0, theta, cut)
        return _divergence(at_one, _bits(others, trials, theta, cut), loss, order)

    # The divergence grows with theta. All others at 1 stand for all cases until the last step.
    enough, too_little = _HALF - 1, 1
    if probed(enough) > renyi:
        raise InfeasibleDesignError(
            f"renyi: {renyi:g} is too small for {num_clients} clients of {trials} trials with 32-bit weights"
        )
    if probed(too_little) <= renyi:
        enough = too_little
    while enough - too_little > max(1, (_HALF - enough) >> 20):
        middle = (enough + too_little) // 2
        if probed(middle) <= renyi:
            enough = middle
        else:
            too_little = middle
    while (found := aggregate_renyi(trials, (_HALF - enough) / TOTAL_WEIGHT, num_clients, order)) > renyi:
        theta_share = math.sqrt(renyi / found) * (1.0 - 1e-6)
        enough = _HALF - max(math.floor((_HALF - enough) * theta_share), 1)
    return enough


def _checked_sum(trials: int, num_clients: int, order: float) -> None:
    if num_clients != int(num_clients) or num_clients < 1:
        raise InvalidSpecError(f"num_clients: {num_clients} is not a whole number above 0")
    if num_clients * trials > _MOST_TRIALS_IN_SUM:
        raise InvalidSpecError(
            f"num_clients: {num_clients} clients of {trials} trials are more than {_MOST_TRIALS_IN_SUM} "
            "bits, for which the exact divergence takes too long; lower levels, or give fewer clients: what "
            "holds for them holds for more"
        )
    if not (math.isfinite(order) and order > 1.0):
        raise InvalidSpecError(f"order: {order} is not a finite number above 1")


def _binomial(successes: NDArray[Any], trials: int, success: Any) -> NDArray[np.float64]:
    """The binomial's probabilities."""
    from scipy import stats  # takes most of a second to import, and few need it

    return np.asarray(stats.binom.pmf(successes, trials, success))
