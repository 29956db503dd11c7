r"""Gaussian noise on a sum of randomly drawn records: the loss of one record in one round.

Each record is drawn independently with probability q (Poisson sampling), in secret. Its part, a vector of
norm C at most, is added to the sum of all drawn parts, and N(0, S^2) to each coordinate of the sum. With a =
C / S, the *separation*, the loss of a record is that of a pair of distributions of one number:

* one record more, or its part replaced by zero (*add-remove*, *zero-out*): (1 - q) N(0, 1) + q N(a, 1)
  against N(0, 1), and the same two in the other order;
* one record in place of another (*replace-one*): (1 - q) N(0, 1) + q N(a, 1) against (1 - q) N(0, 1) + q
  N(-a, 1), which are mirror images, so that one order is as the other.

*Proof* that these pairs dominate. Tell the adversary which of the other records were drawn, and subtract
their parts: by joint convexity this can only help it. What is left is (1 - q) N(0, I) + q N(u, I) against the
same with v in place of u, where |u|, |v| <= a; v is absent (N(0, I) alone) in the first case. Divide by the
density of N(0, I). The hockey-stick divergence of order b is then

    E max(k + q A - b q B, 0),     A = exp(<u, Z> - |u|^2 / 2),     B = exp(<v, Z> - |v|^2 / 2),

with Z ~ N(0, I) and a constant k; more coordinates than the vectors need do not matter.

1. *Longer vectors are worse.* Lengthen u to the norm a by a component that is orthogonal to u and v. This
   multiplies A by an independent factor of mean 1, and the expectation of a convex function of A can only
   grow (Jensen). The same holds for v. In the first case nothing else is to prove: its other order is the
   expectation of max(1 - b (1 - q) - b q A, 0), which is convex in A, too.
2. *Opposite directions are worst.* With the norms fixed, the divergence depends on the correlation of X = <u,
   Z> and Y = <v, Z> alone, and its derivative with respect to their covariance is E f_xy (Plackett's
   identity), where f = max(k + q A - b q B, 0) as a function of X and Y. Its mixed derivative is the delta
   function of the place where f begins, times the product of the slopes q A and -b q B: it is never positive.
   So the correlation -1 is the worst, which is v = -u.

Releases may depend on earlier ones, and the pairs of the rounds, each in the same order, compose (Zhu, Dong,
Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", AISTATS 2022, Theorem 10). The
total for add-remove is the larger of the totals of both orders, and not a total of the larger ones: see
Lebeda, Regehr, Kamath, Steinke, "Avoiding Pitfalls for Privacy Accounting of Subsampled Mechanisms under
Composition", 2024.

**Noise that is only nearly Gaussian.** For rounded shares (``rounded_gaussian``) two sums that are a
apart have distributions that are, within factors whose product is e^r, post-processings of a normal pair of
separation a, which in addition reveals everything with a probability c. A mixture of post-processings is that
post-processing of a mixture. So all of the above holds with losses larger by r, and with c added to the
probability of an infinite loss, both times e^r (as in :func:`~fl_privquant.privacy_loss.closed_forms.
gaussian_loss`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from fl_privquant._array_types import Floats
from fl_privquant.privacy_loss.closed_forms import NOT_PRIVATE
from fl_privquant.privacy_loss.composition.loss_distribution import PrivacyLoss, from_cells
from fl_privquant.statement import Relation

_CELLS = 1 << 15
# Beyond this many standard deviations lies a probability below 1e-18, which counts as revealed.
_REACH = 9.0
# Losses of neighboring atoms differ by this much, so that rounding of what lies between them does not matter.
_MIN_STEP = 1e-9
# More than the relative rounding error of the probability of a cell.
_SLACK = 1e-12
# With a larger separation a drawn record has hardly any privacy, and numbers would overflow.
_MAX_SEPARATION = 30.0


@lru_cache(maxsize=64)
def sampled_gaussian_losses(
    separation: float,
    rate: float,
    relation: Relation = Relation.ADD_REMOVE,
    revealed: float = 0.0,
    log_ratio: float = 0.0,
) -> tuple[PrivacyLoss, ...]:
    """The losses of one record in one round, one for each order of the two neighbors.

    Compose the rounds of each order by themselves, and take the larger epsilon.

    Parameters
    ----------
    separation
        The largest norm of a record's part over the standard deviation of the noise: one over the noise
        multiplier.
    rate
        The probability with which a record is drawn.
    relation
        Which data are neighbors.
    revealed, log_ratio
        How far the noise is from Gaussian: see the notes of this module.

    >>> remove, add = sampled_gaussian_losses(1.0, 0.1)
    >>> round(remove.delta(0.5), 4), round(add.delta(0.5), 4)
    (0.002, 0.0)
    >>> whole, _ = sampled_gaussian_losses(1.0, 1.0)
    >>> round(whole.delta(1.0), 5)
    0.12694
    """
    replaces = relation is Relation.REPLACE_ONE
    if separation > _MAX_SEPARATION or revealed >= 1.0:
        return (NOT_PRIVATE,) if replaces else (NOT_PRIVATE, NOT_PRIVATE)
    scores = np.linspace(-_REACH - separation * replaces, _REACH + separation, _CELLS + 1)
    nodes, weights = np.polynomial.legendre.leggauss(4)
    width = float(scores[1] - scores[0])
    inside = scores[:-1, None] + 0.5 * width * (1.0 + nodes)
    plain = np.exp(-0.5 * inside**2) / math.sqrt(2.0 * math.pi)

    def mass(sign: float) -> Floats:
        """The probability of each cell under the mixture whose second mean has that sign."""
        drawn = np.exp(-0.5 * (inside - sign * separation) ** 2) / math.sqrt(2.0 * math.pi)
        mixed = (1.0 - rate) * plain + rate * drawn
        return np.asarray(0.5 * width * (mixed @ weights))

    without = mass(-1.0) if replaces else 0.5 * width * (plain @ weights)
    loss = _log_mixture(separation * scores - 0.5 * separation**2, rate)
    if replaces:
        loss = loss - _log_mixture(-separation * scores - 0.5 * separation**2, rate)
    outside = 2.0 * float(ndtr(-_REACH)) + revealed
    first = _loss_of_cells(loss, mass(1.0), without, outside, log_ratio)
    if replaces:
        return (first,)
    return first, _loss_of_cells(-loss[::-1], without[::-1], mass(1.0)[::-1], outside, log_ratio)


def _log_mixture(exponent: Floats, rate: float) -> Floats:
    """Log of 1 - rate + rate * exp(exponent), accurate where it is small, and without overflow."""
    if rate == 1.0:
        return exponent
    small = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
    large = np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
    return np.where((exponent < 1.0) & (rate < 0.5), small, large)


def _loss_of_cells(
    edges: Floats, first: Floats, second: Floats, outside: float, log_ratio: float
) -> PrivacyLoss:
    """The dominating loss for cells of which both probabilities are known, and the losses at their edges.

    Cells whose losses hardly differ are merged. ``outside`` counts as revealed.
    """
    steps = np.floor((edges - edges[0]) / _MIN_STEP)
    starts = np.concatenate([[0], 1 + np.flatnonzero(np.diff(steps[:-1]))])
    if starts.size > 1 and steps[-1] == steps[starts[-1]]:
        starts = starts[:-1]
    masses, others = np.add.reduceat(first, starts), np.add.reduceat(second, starts)
    kept = np.append(edges[starts], max(edges[-1], edges[starts[-1]] + _MIN_STEP))
    with np.errstate(invalid="ignore", divide="ignore"):
        decay = np.where(masses > 0.0, others / masses * np.exp(kept[:-1]), 1.0)
    factor = math.exp(log_ratio)
    atoms = from_cells(kept, masses, np.clip(decay * (1.0 - _SLACK), 0.0, 1.0), 0.0, _SLACK)
    slack = (1.0 + atoms.slack) * factor - 1.0
    return PrivacyLoss(atoms.losses + log_ratio, atoms.masses, min(outside * factor, 1.0), slack)
