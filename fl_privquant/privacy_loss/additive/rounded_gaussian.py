r"""Rounded shares: sums of codes round(x + g), whose privacy is that of Gaussian noise, whatever is rounded.

Each of h honest clients sends m_i = round(a_i + g_i). Lengths are in units of the lattice's spacing: a_i is
its input, a real number that may depend on anything but its own noise, and g_i ~ N(0, s^2) is its *share* of
the noise. The server sees Y = m_1 + ... + m_h modulo a power of two, in each of d coordinates and T rounds.

**Lemma.** Let U be the sum of all a_i + g_i. Given U, the fractional parts of the first h - 1 of the a_i +
g_i have a density on the unit cube between 1 - eta and 1 + eta, whatever the a_i are, where

    eta = sum over k in Z^(h-1), k != 0, of exp(-2 pi^2 s^2 (|k|^2 - (sum of k)^2 / h)).

*Proof.* Given U, the first h - 1 terms are normal with covariance C = s^2 (I - 11'/h). The density of their
fractional parts is the normal density summed over Z^(h-1). By Poisson's formula this is 1 plus the sum over k
!= 0 of exp(-2 pi^2 k'Ck) times a phase, which is all that depends on the means.

*Computing eta.* With A = 2 pi^2 s^2 and r(u) = sum over k != 0 of exp(-A (k^2 - 2 k u)),

    1 + eta = sqrt(A h / pi) * integral over -1/2 < u < 1/2 of (exp(-A u^2) (1 + r(u)))^h du:

expand the power, complete the square in u, and note that adding a constant to all numbers k changes nothing.
As sqrt(A h / pi) times the integral of exp(-A h u^2) is 1 - erfc(sqrt(A h) / 2),

    eta = sqrt(A h / pi) * 2 * (integral over 0 < u < 1/2 of exp(-A h u^2) expm1(h log1p(r(u))) du)
          - erfc(sqrt(A h) / 2).

Both factors are monotone in u, so that a sum over cells, each with the larger value of each factor, bounds
it.

**Simple count.** Let R(v) = floor(v + 1/2). As R(v + 1) = R(v) + 1, Y is a function of U and of these h - 1
fractional parts (U determines the last one). If they were uniform, Y would be a random function of U that
does not depend on the inputs. So the distribution of Y is, within factors 1 - eta and 1 + eta, a
post-processing of U, and U is the Gaussian mechanism: the sum of the inputs plus N(0, h s^2). For d T
coordinates, chosen adaptively, the factors multiply. If the Gaussian mechanisms together are (e,
delta)-private, the run is private with

    e + d T log((1 + eta) / (1 - eta)),     (1 + eta)^(d T) delta.

**Refined count.** The rounding errors hide the sum, too. If the fractional parts were uniform, the rounding
errors e_1, ..., e_(h-1) would be independent of U and uniform on [-1/2, 1/2], and Y = R(U - e_1 - ... -
e_(h-1)). So Y is a post-processing of the sum of the inputs plus N(0, h s^2) plus h - 1 uniform errors. By
:mod:`fl_privquant.privacy_loss.additive.rounding_noise` a coordinate whose sum moves by D is no easier to
tell than a normal
pair of separation a D, except for a small probability, with a close to 1 / sqrt(h (s^2 + 1/12)). This holds
for every real D and for every fractional part of the sum.

**More honest clients** than h only help: tell the adversary the codes of the others. *Shares that differ*:
k'Ck is then the least value over c of the sum of s_i^2 (k_i - c)^2, with k_h = 0, which grows with each s_i.
So eta of the smallest share of any honest client, the protected one included, bounds it. **One client** (the
local view): Y = R(a + g) is a post-processing of the Gaussian mechanism, and eta is 0.

**Noise in integers.** Nothing above is computed with real numbers on a client. Let F = 2^20 be the number of
points of a *fine lattice* per spacing. A client rounds its input towards zero to an integer A_i of fine
points (so that norms do not grow), adds the integer G_i = 2^10 a + b, where a and b are discrete Gaussians
with parameters sigma_a^2 and sigma_b^2 (:mod:`fl_privquant.sampling.fine_gaussian`), and sends floor((A_i +
G_i + F/2) / F). With rho = 2:

1. Let k be drawn around a real v with probabilities proportional to exp(-(k - v)^2 / (2 rho^2)). The sum of
   these numbers over all k is rho sqrt(2 pi) times a factor within 1 ± z, z = 2.1 exp(-2 pi^2 rho^2)
   (Poisson). So if v is drawn from N(0, sigma_b^2 - rho^2), then k is a discrete Gaussian with sigma_b^2, up
   to such factors.
2. 2^10 a + v has the density of N(0, s^2 F^2 - rho^2) with s^2 F^2 = 2^20 sigma_a^2 + sigma_b^2, times a
   factor within 1 ± z: complete the square and sum over a, whose deviation given the total is at least 2 -
   2^-10.
3. So A_i + G_i is, up to these factors, drawn by the kernel of step 1 around A_i + N(0, s^2 F^2 - rho^2).
   Drawing and rounding together are a random R with R(v + 1) = R(v) + 1 in distribution, which is all that
   the lemma uses of it. Thus all of the above holds with s^2 - rho^2 / F^2 in place of s^2, and factors (1 ±
   z)^4 for each draw.
4. For the refined count: if the position of v modulo F is uniform, then so is that of k, and v - k is
   independent of it. So a rounding error is uniform on the F fine points, plus noise that is N(0, rho^2)
   within 1 ± z. The logarithm of the Laplace transform of n uniform errors on fine points differs from that
   of n continuous ones by n z^2 / (24 F^2), as if the variance of the normal part were smaller by n / (12
   F^2), and by less than n z^4 / (2000 F^4). In the integrals of
   :mod:`fl_privquant.privacy_loss.additive.rounding_noise` the
   latter changes densities up to its largest t by less than 1e-16 of their values (|z|^2 v < 300), which is
   added to the logarithm of the ratio.

Rounding half to even instead would violate R(v + 1) = R(v) + 1, and fine points do hit the middle: the ratio
is 1.2e-4 instead of 2.5e-8 with h = 3, s = 1.2. Saturating instead of reducing modulo a power of two is no
function of Y.

**Tables.** What is drawn is within a total variation distance V of the discrete Gaussians. In a round, h d
draws differ from ideal ones with probability t = h d V at most, which adds (1 + e^E) t to delta at every E.
If the ideal round has delta_E at some E, then its curve plus c = (1 + e^E) t + delta_E bounds the curve of
the real round: up to E by what was just said, and beyond because curves fall. So c / (1 - the pair's total
variation distance) is charged as a probability that the round reveals everything
(:mod:`fl_privquant.privacy_loss.additive.normal_pairs`), at an E at which delta_E is negligible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from fl_privquant._array_types import Floats
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta
from fl_privquant.privacy_loss.additive.normal_pairs import spare_for
from fl_privquant.privacy_loss.additive.rounding_noise import RoundingNoise
from fl_privquant.privacy_loss.closed_forms import NormalLoss, gaussian_loss
from fl_privquant.privacy_loss.composition.compose import NamedLoss, UpdateNorm

# The logarithm of the factors of step 3, for each draw: 4 z, with z = 2.1 exp(-8 pi^2).
_DRAWN = 1e-33
# What step 4 adds to the logarithm of the ratio of a coordinate.
_FINE = 2e-16
# Probability, for a whole update, that the normal pairs of the refined count do not cover it.
_CHARGED = 1e-13
# The refined count is tried for separations of a round up to this.
_MAX_SEPARATION = 8.0
# A run whose logarithm of the ratio exceeds this is not certified.
_MAX_RATIO = 30.0
# Where the distance of tables is weighed against the tail of the loss, in its standard deviations.
_SCORES = (4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0)
# Cells of the bound of eta, and what covers its rounding.
_CELLS = 4096
_FLOAT_ROOM = 1.0 + 1e-9
# The exponential of a larger number overflows.
_FAR = 700.0
# Added to eta, which may be too small for a float.
_TINY = 1e-290


def fraction_gap(num_honest: int, deviation: float) -> float:
    """The eta of the lemma for shares of that ``deviation``, in units of the spacing, rounded up.

    >>> f"{fraction_gap(100, 1.2):.1e}", f"{fraction_gap(100, 1.5):.1e}"
    ('1.2e-10', '1.6e-17')
    """
    return 0.0 if num_honest < 2 else _fraction_gap(num_honest, deviation)


@lru_cache(maxsize=1024)
def _fraction_gap(num_honest: int, deviation: float) -> float:
    rate, h = 2.0 * math.pi**2 * deviation**2, float(num_honest)
    # The integrand is a sum of bells of this width around j / h; beyond the first ones it falls fast.
    middle = min(2.0 / h + 12.0 / math.sqrt(2.0 * rate * h), 0.25)
    edges = np.concatenate([np.linspace(0.0, middle, _CELLS), np.geomspace(middle, 0.5, _CELLS)[1:]])
    low, high = edges[:-1], edges[1:]
    others = h * np.log1p(_others(high, rate))
    with np.errstate(divide="ignore"):
        # expm1, in logarithms where it would overflow.
        logs = np.where(others < 30.0, np.log(np.expm1(np.minimum(others, 30.0))), others)
    terms = np.exp(np.minimum(logs - rate * h * low**2, _FAR)) * (high - low)
    total = 2.0 * math.sqrt(rate * h / math.pi) * float(terms.sum()) * _FLOAT_ROOM
    return max(total - math.erfc(0.5 * math.sqrt(rate * h)), 0.0) + _TINY


def _others(u: Floats, rate: float) -> Floats:
    """r(u): the sum over k != 0 of exp(-rate (k^2 - 2 k u)), for 0 <= u <= 1/2, rounded up."""
    total = np.zeros_like(u)
    for k in (*range(-3, 0), *range(1, 5)):
        total += np.exp(-rate * (k * k - 2.0 * k * u))
    # The terms beyond these are below the fourth one times a geometric series.
    return np.asarray(total + 2.0 * np.exp(-rate * (16.0 - 8.0 * u)))


@dataclass(frozen=True)
class RoundedShares:
    """The sum of the rounded codes of ``num_honest`` clients, in one round; 1 is the local view."""

    num_honest: int
    deviation: float
    """Standard deviation s of the Gaussian part of a client's share (step 3), in units of the spacing."""
    table_distance: float = 0.0
    """Total variation distance V of one draw to the ideal noise."""

    @property
    def log_ratio(self) -> float:
        """Log((1 + eta) / (1 - eta)) of one coordinate, with the factors of step 3; infinite if eta >= 1."""
        gap = fraction_gap(self.num_honest, self.deviation)
        drawn = 2.0 * self.num_honest * _DRAWN
        return math.inf if gap >= 1.0 else 2.0 * math.atanh(gap) * _FLOAT_ROOM + drawn

    def losses(self, distance: float, dimension: int) -> list[NamedLoss]:
        """The :meth:`pairs` with their names: the simple and the refined count."""
        names = ("l2 gaussian of shares", "l2 gaussian of rounded shares")
        return [
            NamedLoss(pair, name, norm=UpdateNorm.L2)
            for pair, name in zip(self.pairs(distance, dimension), names, strict=False)
        ]

    def pairs(self, distance: float, dimension: int) -> list[NormalLoss]:
        """Bounds of the loss of an update that moves by ``distance`` at most, in units of the spacing.

        They are the simple and the refined count; none where not even the simple one holds.
        """
        ratio = self.log_ratio * dimension
        if ratio > _MAX_RATIO:
            return []
        simple = distance / (self.deviation * math.sqrt(self.num_honest))
        charge = self.charge(simple, dimension, ratio)
        if charge >= 1.0:
            return []
        pairs = [gaussian_loss(simple, charge, ratio)]
        refined = None if self.num_honest < 2 else self._refine(distance, dimension, simple)
        if refined is not None:
            ratio += dimension * _FINE
            charge = self.charge(refined, dimension, ratio) + _CHARGED
            pairs.append(gaussian_loss(refined, charge, ratio))
        return pairs

    def _refine(self, distance: float, dimension: int, most: float) -> float | None:
        """The separation by the refined count, if one is certified; ``most`` is that of the simple count."""
        spare = spare_for(_CHARGED / dimension, most) if most <= _MAX_SEPARATION else 0.0
        if spare == 0.0:
            return None
        noise = RoundingNoise(self.num_honest * self.deviation**2, self.num_honest - 1)
        # Slacks are rounded down, so that similar ones share their grids.
        return distance * noise.separation(10.0 ** math.floor(math.log10(spare)))

    def charge(self, separation: float, dimension: int, ratio: float) -> float:
        """The probability that covers the distance of tables from ideal noise, in a round."""
        distance = self.num_honest * dimension * self.table_distance
        if distance == 0.0:
            return 0.0

        def charge(score: float) -> float:
            epsilon = separation * (0.5 * separation + score)
            if epsilon + ratio > _FAR:
                return math.inf
            beyond = gaussian_delta(separation, epsilon) * math.exp(ratio)
            return (1.0 + math.exp(epsilon + ratio)) * distance + beyond

        # Every E gives a bound; these are that many deviations above the mean loss.
        least = min(charge(score) for score in _SCORES)
        hidden = 2.0 * float(ndtr(-0.5 * separation))
        return least / hidden if least < hidden else 1.0
