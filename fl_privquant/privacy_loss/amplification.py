r"""Amplification by sampling: the loss of a round for an adversary who does not know who took part.

Neighbors are two federations that differ in one client's update, u or u'. A round draws n of N honest
clients, uniformly and in secret, and shows a function of their releases and of n: the new model. Write P and
P' for the distribution of what is shown if the client was drawn, with u and with u'. Write R for the
distribution if it was not.

**Theorem.** Suppose that replacing one drawn client's update by any other costs at most a curve H, that is
H_a(M, M') <= H(a) for all a >= 1, where H_a is the hockey-stick divergence sum of max(M - a M', 0). With
q = n / N and b = 1 + q (a - 1), what is shown has for all a >= 1

    H_b(q P + (1 - q) R, q P' + (1 - q) R) <= q H(a).

*Proof.* As b - 1 = q (a - 1), with s = b / a the left side is q times H_a(P, (1 - s) R + s P'): put
q P - b q P' + (1 - q) (1 - b) R = q (P - a (s P' + (1 - s) R)) and compare the factors of R: q a (1 - s) =
q (a - b) = (1 - q) (b - 1). (This is "advanced joint convexity": Balle, Barthe, Gaboardi, "Privacy
Amplification by Subsampling", NeurIPS 2018, Theorem 2.) H_a is convex in its second distribution, so it
remains to bound H_a(P, P') and H_a(P, R) by H(a). The first is the assumption. For the second, draw the n - 1
other clients T of a round that has the client in it, and then one more, j, uniformly from those that are
neither in T nor the client: T + j is a uniform choice of n clients without it. So P and R are mixtures, over
the same T and j, of the distributions of T + client and T + j. These differ in the update of one drawn
client, and both have n honest clients in their sum. By joint convexity H_a(P, R) <= H(a). (Ibid., Theorem 11,
for replaced records.) For a < 1 the bound follows from the other order of the two federations, as every pair
occurs in both.

**Poisson sampling.** If clients are drawn independently, all with the same probability, the number of those
drawn does not depend on any update. Tell the adversary that number n: given it, the n are a uniform choice,
and the theorem holds with q = n / N. Hence a rule such as "a round with fewer than 50 clients is not run" is
harmless here, because it depends on n alone. It would not be harmless for the textbook bound, where q is the
probability and a client is hidden by its possible absence: a client that tips the number over the limit is
known to have taken part. The textbook bound (one client added or removed) does not fit anyway, because a mean
over n codes reveals n.

**Corrupt and lost clients.** Corrupt clients know whether they were drawn. Given which of them were, the
honest clients that were drawn are still a uniform choice among honest ones. So N counts honest clients only.
(Where clients learn who else was drawn, as the neighbors of a secure sum do, corrupt clients tell the
adversary, and nothing is amplified:
:attr:`~fl_privquant.accounting.aggregation.Aggregation.reveals_participants`.) Whether a client would answer
does not depend on updates. Given who would, the clients that do answer are a uniform choice among those who
would. So N counts only clients that would have answered. Nobody knows how many these are in the whole
federation: the aggregation's share of lost clients is assumed to hold for it, and statements say so.

**Rounds.** Each round draws independently, so rounds compose adaptively: given all models so far, the next
draw is still uniform, and the updates that it draws from are determined. This is false where a draw depends
on earlier ones, as with a limit on how often a client takes part: such rounds are not amplified. It is also
false where an *update* depends on whether its client took part before, as with momentum or personal layers
that clients keep: later rounds then reveal something about earlier draws. A counterexample has three such
clients, two of which are drawn in each of two rounds. A client that refuses when its own budget is spent
is one of this kind, too. No server can know what clients keep, so every amplified statement assumes that no
update depends on earlier draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta, gaussian_separation
from fl_privquant.privacy_loss.composition.loss_distribution import ROUNDING, PrivacyLoss, from_curve

__all__ = ["Curve", "curve_of", "subsampled_loss"]

Curve = tuple[Floats, Floats]
"""Epsilons from 0 upwards, and an upper bound of delta at each; beyond the last epsilon its delta holds."""

# A typical delta. The epsilon at this delta gives the scale of a curve.
_TYPICAL_DELTA = 1e-5
# How far a curve is followed, in standard deviations of the loss.
_REACH = 9.5
# Larger epsilons would overflow in exp(), and sampling does not help with them.
_MAX_EPSILON = 500.0


def curve_of(epsilon_of: Callable[[float], float], pure: float, points: int) -> Curve | None:
    """The curve of a release whose epsilon is known for each delta; None where its epsilon is too large.

    ``epsilon_of`` gives an upper bound of epsilon at a delta above 0; ``pure`` is the epsilon at delta 0, or
    infinity. The curve is evaluated at about that many ``points``, spread over the losses of a normal pair of
    the same scale.
    """
    typical = min(epsilon_of(_TYPICAL_DELTA), pure)
    if not typical <= _MAX_EPSILON:
        return None
    separation = max(gaussian_separation(typical, _TYPICAL_DELTA), 1e-9)
    ladder = np.linspace(0.0, separation * (_REACH + 0.5 * separation), points)
    deltas = [min(gaussian_delta(separation, float(epsilon)), 1.0) for epsilon in ladder]
    # Further deltas: from the one at epsilon 0 up to 1.
    start = deltas[0]
    above = [min(start * (1.0 + 10.0**-power), 1.0) for power in (6, 4, 3, 2, 1)] + [1.0]
    reached = {0.0: 1.0}
    for delta in [*above, *(delta for delta in deltas if delta > 0.0)]:
        epsilon = min(epsilon_of(delta), pure)
        if epsilon <= _MAX_EPSILON:
            reached[epsilon] = min(delta, reached.get(epsilon, 1.0))
    if pure <= _MAX_EPSILON:
        reached[pure] = 0.0
    losses = np.array(sorted(reached))
    # A bound on delta holds at all larger epsilons, too.
    return losses, np.minimum.accumulate([reached[loss] for loss in losses.tolist()])


def subsampled_loss(curve: Curve, rate: float) -> PrivacyLoss:
    """The loss of a round whose clients are drawn in secret, each with probability at most ``rate``.

    ``curve`` is the loss of a client that is known to have taken part, for replacing its update. ``rate`` in
    (0, 1] is the number of clients drawn, divided by the number of clients that could have been drawn.

    >>> curve = curve_of(lambda delta: 1.0, 1.0, points=8)
    >>> round(subsampled_loss(curve, 0.1).max_loss, 6) == round(math.log1p(0.1 * math.expm1(1.0)), 6)
    True
    """
    losses, heights = curve
    with np.errstate(divide="ignore"):
        amplified = np.where(losses < 1.0, np.log1p(rate * np.expm1(np.minimum(losses, 1.0))), 0.0)
        large = np.logaddexp(np.log1p(-rate), math.log(rate) + losses) if rate < 1.0 else losses
    amplified = np.where(losses < 1.0, amplified, large)
    amplified = amplified + ROUNDING * (losses > 0.0) * (1.0 + amplified)
    # If rounding makes points equal, the last of them is kept, which has the least delta.
    kept = np.append(np.diff(amplified) > 0.0, True)
    rest, share = float(heights[-1]), rate * (1.0 + ROUNDING)
    return from_curve(amplified[kept], share * (heights[kept] - rest), share * rest)
