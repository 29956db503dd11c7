"""The audit of a whole run in one run: how well canaries are recognized in what an adversary sees.

A canary is a client that sends, in every round that asks it, the same update of the largest norm in a random
direction. A coin decides whether it does (zero-out), or which sign its update has (replace-one). The
adversary sees the opened sums, or the models, and scores each canary: the inner product of all that it saw
with the canary's direction. All canaries are in the same run, which gives as many scores as canaries.

Two analyses turn scores and coins into a lower bound of epsilon:

* **Normal scores.** Sums of noise over many coordinates are nearly normal. Then the distance of the two
  means, in standard deviations, is bounded by Student's noncentral distribution, and epsilon follows from it
  as for Gaussian noise. The assumption is tested first: both groups must pass a test of normality, and have
  the same variance. As in Andrew et al. 2023, "One-shot Empirical Privacy Estimation for Federated Learning".
  No sample shows how rare outputs are that have a probability of delta. Bounded noise has none of those that
  Gaussian noise would have: four randomized bits cost 4 epsilon at most, and have scores that look normal. So
  a score must also add up many independent numbers, none of which says much about the canary alone.
* **Guesses.** Otherwise, the adversary guesses the coins of the canaries with the largest and the
  smallest scores. With (epsilon, delta) it is hardly more often right than randomized response. As in
  Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2.

A lower bound above the stated epsilon refutes the statement, up to the confidence. A lower bound below it
proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy

from fl_privquant._array_types import Array, ArrayLike, Floats
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon
from fl_privquant.statement import PrivacyStatement, Relation

# A test of the assumption rejects scores that fulfill it with this probability.
_REJECTED = 0.001
# A score adds up so many independent numbers or more, each of which separates the coins by so many standard
# deviations or less. A randomized bit with a loss of e, weighed by chance, separates them by 1.6 sinh(e / 2).
_MIN_TERMS, _MAX_TERM_SEPARATION = 100, 1.0
# Shares of the canaries whose coins are guessed; the best one is taken, and pays for the choice.
_GUESSED = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
_MIN_CANARIES = 20


@dataclass(frozen=True)
class Canaries:
    """Clients that an audit adds to a run, with their directions and coins.

    >>> canaries = Canaries(100, 500)
    >>> canaries.update(3, norm=2.0).shape, round(float(np.linalg.norm(canaries.directions[3])), 6)
    ((500,), 1.0)
    """

    count: int
    """Number of canaries."""
    dimension: int
    """Coordinates of an update."""
    relation: Relation = Relation.REPLACE_ONE
    """What the coin of a canary decides: the sign of its update, or whether it is zero."""
    seed: int = 0
    """Directions and coins are drawn from it."""

    def __post_init__(self) -> None:
        if self.count < _MIN_CANARIES or self.dimension < 1:
            raise InvalidSpecError(
                "canaries",
                self.count,
                f"of {self.dimension} coordinates",
                f"an audit needs {_MIN_CANARIES} or more canaries of one coordinate or more",
            )

    @cached_property
    def coins(self) -> Array:
        """(count,) whether each canary sends its update (or sends it with a positive sign)."""
        return np.random.default_rng([self.seed, 1]).random(self.count) < 0.5

    @cached_property
    def directions(self) -> Floats:
        """(count, dimension) unit vectors, orthogonal to each other where there are enough coordinates."""
        drawn = np.random.default_rng([self.seed, 2]).standard_normal((self.count, self.dimension))
        if self.count <= self.dimension:
            return np.asarray(np.linalg.qr(drawn.T)[0].T)
        return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))

    def update(self, canary: int, norm: float) -> Floats:
        """What a canary sends in every round, where updates have that norm at most."""
        absent = 0.0 if self.relation is not Relation.REPLACE_ONE else -1.0
        return np.asarray(self.directions[canary] * (norm if self.coins[canary] else absent * norm))

    def score(self, seen: Iterable[ArrayLike]) -> Floats:
        """(count,) the score of each canary, from the sums or model updates of all rounds."""
        total = np.zeros(self.dimension)
        for vector in seen:
            total += np.asarray(vector, dtype=np.float64).ravel()
        return np.asarray(self.directions @ total)


@dataclass(frozen=True)
class CanaryBound:
    """What an audit found: the interval of epsilon beside what is stated."""

    lower: float
    """Below the true epsilon with at least that ``confidence``."""
    estimate: float
    """The most likely epsilon, where scores are normal; else the lower bound."""
    upper: float
    """The upper end of the interval, for this attack; a better one may exceed it."""
    confidence: float
    stated: PrivacyStatement
    num_canaries: int
    method: str
    tests: dict[str, float] = field(default_factory=dict)
    """p-values of the tests of the assumption."""

    @property
    def refuted(self) -> bool:
        """Whether the statement is shown to be wrong."""
        return self.lower > self.stated.epsilon

    def __str__(self) -> str:
        stated = self.stated
        at_least = PrivacyStatement.at_least(self.lower, stated.unit, stated.view, stated.relation)
        upper = replace(stated, epsilon=self.upper)
        verdict = "REFUTED" if self.refuted else "not refuted"
        return (
            f"{at_least} at confidence {self.confidence:g}, by {self.num_canaries} "
            f"canaries [{self.method}]; the attack's own interval reaches up to {upper.figures}; "
            f"stated {self.stated.figures}: {verdict}"
        )


def audit_scores(
    scores: ArrayLike,
    coins: ArrayLike,
    stated: PrivacyStatement,
    confidence: float = 0.95,
    num_terms: int = 0,
) -> CanaryBound:
    """The lower bound of epsilon from scores of canaries and their coins.

    Parameters
    ----------
    scores
        A number for each canary, larger where the adversary believes in its coin.
    coins
        Whether the coin of each canary was heads.
    stated
        The statement that is attacked: its delta is used, and its epsilon compared.
    confidence
        Probability with which the bound holds.
    num_terms
        How many independent random numbers are added up in a score: coordinates times rounds, times the
        clients in a sum. The bound rests on guesses alone if there are fewer than 100, or if it is not known.

    Returns
    -------
    CanaryBound
        The bound, with the interval of this attack.

    Raises
    ------
    InvalidSpecError
        If the numbers differ, are too few, or all coins are equal.
    """
    values, heads = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(coins, dtype=bool).ravel()
    if values.shape != heads.shape or values.size < _MIN_CANARIES or min(heads.sum(), (~heads).sum()) < 8:
        raise InvalidSpecError(
            "scores",
            values.size,
            f"for {heads.size} coins, {int(heads.sum())} of them heads",
            f"expected {_MIN_CANARIES} canaries or more, 8 of each kind",
        )
    if not np.all(np.isfinite(values)):
        raise InvalidSpecError(
            "scores", MISSING, "some are not finite", "leave out the rounds that were lost"
        )
    tests = _test_normality(values[heads], values[~heads])
    low, middle, high = _separations(values[heads], values[~heads], confidence)
    many_small = num_terms >= _MIN_TERMS and high <= _MAX_TERM_SEPARATION * math.sqrt(num_terms)
    # Without a delta, Gaussian noise is not private at all.
    if many_small and stated.delta > 0.0 and min(tests.values()) >= _REJECTED:
        lower, estimate, upper = (
            gaussian_epsilon(distance, stated.delta) for distance in (low, middle, high)
        )
        return CanaryBound(lower, estimate, upper, confidence, stated, values.size, "normal scores", tests)
    lower = guessing_bound(values, heads, stated.delta, confidence)
    return CanaryBound(lower, lower, math.inf, confidence, stated, values.size, "guesses", tests)


def _test_normality(one: Floats, other: Floats) -> dict[str, float]:
    """p-values that both groups are normal, and have the same variance."""
    return {
        "normal with heads": float(scipy.stats.normaltest(one).pvalue),
        "normal with tails": float(scipy.stats.normaltest(other).pvalue),
        "same variance": float(scipy.stats.levene(one, other).pvalue),
    }


def _separations(one: Floats, other: Floats, confidence: float) -> tuple[float, float, float]:
    """The distance of two means in standard deviations: a lower bound, an estimate, an upper bound."""
    sizes, freedom = one.size * other.size / (one.size + other.size), one.size + other.size - 2
    pooled = math.sqrt(((one.size - 1) * one.var(ddof=1) + (other.size - 1) * other.var(ddof=1)) / freedom)
    statistic = math.sqrt(sizes) * float(one.mean() - other.mean()) / pooled

    def distance(probability: float) -> float:
        """The distance at which a larger statistic has that probability."""
        spread = 12.0 + abs(statistic)
        root = scipy.optimize.brentq(
            lambda shift: float(scipy.stats.nct.sf(statistic, freedom, shift)) - probability,
            statistic - spread,
            statistic + spread,
        )
        return max(float(root), 0.0) / math.sqrt(sizes)

    return distance(1.0 - confidence), distance(0.5), distance(confidence)


def guessing_bound(scores: ArrayLike, coins: ArrayLike, delta: float, confidence: float = 0.95) -> float:
    """The lower bound of epsilon from guesses of coins, without any assumption on the scores.

    Parameters
    ----------
    scores, coins
        As for :func:`audit_scores`.
    delta
        The delta for which epsilon is bounded.
    confidence
        Probability with which the bound holds.

    Returns
    -------
    float
        The bound; 0 where guesses are no better than chance.
    """
    order = np.argsort(np.asarray(scores, dtype=np.float64), kind="stable")
    heads = np.asarray(coins, dtype=bool)[order]
    error, best = (1.0 - confidence) / len(_GUESSED), 0.0
    for share in _GUESSED:
        half = max(int(0.5 * share * heads.size), 1)
        correct = int((~heads[:half]).sum() + heads[-half:].sum())
        best = max(best, _epsilon_of_guesses(correct, 2 * half, heads.size, delta, error))
    return best


def _epsilon_of_guesses(correct: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """The least epsilon for which that many correct guesses are not less likely than ``error``."""
    if _guess_probability(correct, guesses, canaries, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, 50.0
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        rare = _guess_probability(correct, guesses, canaries, middle, delta) <= error
        low, high = (middle, high) if rare else (low, middle)
    return low


def _guess_probability(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Bound of the probability of so many correct guesses."""
    right = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(scipy.stats.binom.sf(correct - 1, guesses, right))
    if delta == 0.0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(scipy.stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    steepest = float((below / np.arange(1, correct + 1)).max())
    return min(tail + 2.0 * canaries * delta * steepest, 1.0)
