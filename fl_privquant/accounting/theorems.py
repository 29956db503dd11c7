"""Bounds for sums that come with a mechanism: each beside the blanket, and the smaller one is stated.

* **PBM** (Chen, Özgür, Kairouz 2022): the Rényi divergence of a sum of n codes, computed at the worst inputs
  (:func:`fl_privquant.mechanisms.pbm.aggregate_renyi`). It knows that the others' bits hide more than their
  blanket does, which matters where bits are far from fair; the blanket has the law of the loss, not only
  its moments. All cases of many bits take too long: then fewer clients are counted, which is a bound too.
  With two levels this is randomized response, so ``one_bit`` has it as well.
* **Skellam, discrete Gaussian**: their theorems are for updates of bounded L2 norm, and are tried where a
  norm is given (:mod:`fl_privquant.accounting.norm`). For a coordinate by itself the law of the sum of the
  noises is known, so that its loss is computed exactly: no theorem is smaller.
* **RQM** (Youn, Hu, Ziani, Abernethy 2023): a closed form that bounds the codes of one client bounds any
  sum by post-processing. But the exact local loss of the table is at most any such bound, and the
  blanket's is at most the local one: it is the smaller bound, always, and there is nothing to compare.

**Sampling of clients.** Flower's strategies draw samples of fixed size, but the server draws them: against
it nothing is amplified, and outsiders who see only the models would have to be kept from learning who took
part. So runs count no amplification; :class:`fl_privquant.accounting.release.Sampling` has it for those who
can promise that the sample is secret.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fl_privquant.law.table import TOTAL_WEIGHT
from fl_privquant.loss.compose import Moments
from fl_privquant.mechanisms.base import Mechanism, TableMechanism
from fl_privquant.mechanisms.pbm import aggregate_renyi
from fl_privquant.mechanisms.sum_of_bits import SumOfBits

__all__ = ["ChordMoments", "theorem_losses"]

Floats = NDArray[np.float64]

# Bits in a sum up to which all cases are gone through: about a second for all orders.
_MOST_BITS = 1024
_RATES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, eq=False)
class ChordMoments:
    """Moments of a loss from some orders: rate times the divergence is convex, so chords are above it.

    Parameters
    ----------
    rates
        (k,) orders less one, increasing.
    values
        (k,) upper bounds of rate times the divergence of order rate + 1.
    max_loss
        The pure epsilon.

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


def theorem_losses(mechanism: Mechanism, num_honest: int) -> list[tuple[Moments, str]]:
    """The losses of one unit in a sum of honest clients by theorems of the mechanism's own, with names."""
    bits = _bits(mechanism)
    if bits is None or num_honest < 2:
        return []
    trials, theta = bits
    counted = min(num_honest, _MOST_BITS // trials)
    if counted < 2 or not 0.0 < theta < 0.5:
        return []
    return [(_poisson_binomial(trials, theta, counted, mechanism.epsilon), "poisson binomial")]


@lru_cache(maxsize=64)
def _poisson_binomial(trials: int, theta: float, num_honest: int, max_loss: float) -> ChordMoments:
    values = [rate * aggregate_renyi(trials, theta, num_honest, rate + 1.0) for rate in _RATES]
    return ChordMoments(np.array(_RATES), np.array(values), max_loss)


def _bits(mechanism: Mechanism) -> tuple[int, float] | None:
    """Bits of symmetric randomized response that a coordinate is, and how far they lean: at most so far."""
    if isinstance(mechanism, SumOfBits):
        return mechanism.trials, mechanism.theta
    if isinstance(mechanism, TableMechanism) and mechanism.num_levels == 2:
        # Every row lies between the two extreme ones; leaning as far as either way is a bound.
        rare = int(mechanism.table.weights.min())
        return 1, math.nextafter((TOTAL_WEIGHT // 2 - rare) / TOTAL_WEIGHT, 1.0)
    return None
