"""An empirical audit: a lower bound on epsilon from how well an encoder's outputs distinguish two inputs.

The encoder is a black box. Many draws for each of a few inputs show which pair of inputs can be distinguished
best, and by which set S of outputs. Fresh draws for that pair alone then give the bound. If the encoder is
(epsilon, delta)-private, P(S) <= e^epsilon P'(S) + delta for the output distributions P and P' of the two
inputs. Clopper and Pearson's exact binomial intervals give a p that P(S) is at least, and a p' that P'(S) is
at most, each except for a small error probability. Then

    epsilon >= log((p - delta) / p').

A bound above what the mechanism claims refutes the claim, up to that error probability. A bound below proves
nothing: this is a test of the code that samples, not a certificate.

Reference: Jagielski, Ullman, Oprea, "Auditing Differentially Private Machine Learning", NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fl_privquant._array_types import Floats
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.statement import PrivacyStatement, Unit

Counts = NDArray[np.int64]

_INPUTS = (-1.0, -0.6, -0.2, 0.0, 0.2, 0.6, 1.0)
# If there are more outputs than this, they are grouped by quantiles.
_MAX_OUTPUTS = 512
# Fraction of the draws that is used to choose the pair of inputs and the set of outputs.
_SEARCH_FRACTION = 0.25


@dataclass(frozen=True)
class EmpiricalBound:
    """The result of the attack; ``lower`` is below the true epsilon with at least that ``confidence``."""

    lower: float
    claimed_epsilon: float
    claimed_delta: float
    confidence: float
    inputs: tuple[float, float]
    outputs: str
    num_draws: int

    @property
    def refuted(self) -> bool:
        """Whether the encoder is shown to be less private than claimed."""
        return self.lower > self.claimed_epsilon

    def __str__(self) -> str:
        verdict = "REFUTED" if self.refuted else "not refuted"
        statement = PrivacyStatement.at_least(self.lower, Unit.COORDINATE)
        claimed = PrivacyStatement(self.claimed_epsilon, self.claimed_delta, Unit.COORDINATE)
        return (
            f"{statement} at confidence {self.confidence:g}, by telling inputs {self.inputs[0]:g} "
            f"and {self.inputs[1]:g} apart by {self.outputs} in "
            f"{self.num_draws} draws each; "
            f"claimed {claimed.figures}: {verdict}"
        )


def empirical_bound(
    mechanism: Mechanism,
    num_draws: int = 400_000,
    confidence: float = 0.9999,
    inputs: tuple[float, ...] = _INPUTS,
    rng: RandomStream | None = None,
) -> EmpiricalBound:
    """The lower bound on epsilon that an attack on the mechanism's own encoder reaches.

    Parameters
    ----------
    mechanism
        The mechanism that is attacked, through ``encode`` and ``decode`` only.
    num_draws
        Outputs drawn for each input of the pair; a share of them is used to find the pair.
    confidence
        Probability with which the bound holds.
    inputs
        Candidates in [-1, 1].
    rng
        Randomness of the encoder; None for that of the operating system, as in use.

    Returns
    -------
    EmpiricalBound
        The bound, with what is claimed and whether it is refuted.

    Raises
    ------
    InvalidSpecError
        The confidence, the number of draws or of inputs is too small, or the mechanism encodes whole
        updates.
    """
    if not 0.5 < confidence < 1.0 or num_draws < 1000 or len(inputs) < 2:
        raise InvalidSpecError(
            "confidence, num_draws, inputs",
            (confidence, num_draws, len(inputs)),
            ", expected a confidence between 0.5 and 1, 1000 draws or more and two inputs or more",
        )
    if mechanism.unit is not Unit.COORDINATE:
        raise InvalidSpecError(
            "mechanism", mechanism.name, "encodes whole updates", "the attack is on one coordinate"
        )
    search = max(int(_SEARCH_FRACTION * num_draws), 500)
    samples = [_draw_outputs(mechanism, x, search, rng) for x in inputs]

    def draw(i: int) -> Floats:
        return _draw_outputs(mechanism, inputs[i], num_draws - search, rng)

    return _bound_by_best_test(samples, draw, inputs, mechanism.statement, confidence)


def bound_of_outputs(
    outputs: ArrayLike, others: ArrayLike, claimed: PrivacyStatement, confidence: float = 0.9999
) -> EmpiricalBound:
    """The lower bound on epsilon from recorded outputs for the two inputs -1 and 1.

    Parameters
    ----------
    outputs
        Codes or decoded values of coordinates that were -1, in units of the clip: those of canaries.
    others
        The same number of them for coordinates that were 1.
    claimed
        The statement of one coordinate that is attacked.
    confidence
        Probability with which the bound holds.

    Returns
    -------
    EmpiricalBound
        The bound, with what was claimed and whether it is refuted.

    Raises
    ------
    InvalidSpecError
        Fewer than 1000 outputs are recorded for an input.
    """
    recorded = [np.asarray(values, dtype=np.float64).ravel() for values in (outputs, others)]
    count = min(values.size for values in recorded)
    if count < 1000:
        raise InvalidSpecError("outputs", count, "are recorded for an input", "record 1000 or more of each")
    search = int(_SEARCH_FRACTION * count)
    samples = [values[:search] for values in recorded]
    return _bound_by_best_test(samples, lambda i: recorded[i][search:count], (-1.0, 1.0), claimed, confidence)


def _bound_by_best_test(
    samples: Sequence[Floats],
    draw: Callable[[int], Floats],
    inputs: Sequence[float],
    claimed: PrivacyStatement,
    confidence: float,
) -> EmpiricalBound:
    """The bound by the test that samples of each input suggest, on fresh outputs of its two inputs."""
    together = np.concatenate(samples)
    points = np.unique(together)
    if points.size > _MAX_OUTPUTS:
        points = np.unique(np.quantile(together, np.linspace(0.0, 1.0, _MAX_OUTPUTS)))
    halves = [np.array([_count_outputs(outputs[part::2], points) for outputs in samples]) for part in (0, 1)]
    pair, chosen = _find_best_test(halves[0], halves[1], claimed.delta, confidence)
    fresh = [draw(i) for i in pair]
    hits, misses = (np.array([_count_outputs(outputs, points)[chosen].sum()]) for outputs in fresh)
    return EmpiricalBound(
        lower=float(_lower_bound(hits, misses, fresh[0].size, claimed.delta, confidence)[0]),
        claimed_epsilon=claimed.epsilon,
        claimed_delta=claimed.delta,
        confidence=confidence,
        inputs=(inputs[pair[0]], inputs[pair[1]]),
        outputs=_describe_outputs(points, chosen),
        num_draws=fresh[0].size,
    )


def _draw_outputs(mechanism: Mechanism, x: float, count: int, rng: RandomStream | None) -> Floats:
    return mechanism.decode(mechanism.encode(np.full(count, x), rng=rng))


def _count_outputs(values: Floats, points: Floats) -> NDArray[np.int64]:
    """How many values lie from each point up to the next one."""
    index = np.clip(np.searchsorted(points, values, side="right") - 1, 0, points.size - 1)
    return np.bincount(index, minlength=points.size)


def _find_best_test(
    counts: Counts, others: Counts, delta: float, confidence: float
) -> tuple[tuple[int, int], NDArray[np.intp]]:
    """The pair of inputs and the set of outputs with the largest bound.

    If both distributions were known, a set of the outputs with the largest ratios would be best. Ratios of
    counts are noisy if there are many outputs, so half-lines of outputs are tried too. One half of the draws
    suggests sets, and the other half judges them.
    """
    best, pair, chosen = -math.inf, (0, 1), np.arange(1)
    total = int(others[0].sum())
    upwards = np.arange(counts.shape[1])
    for i in range(len(counts)):
        for j in range(len(counts)):
            if i == j:
                continue
            ratios = (counts[i] + 0.5) / (counts[j] + 0.5)
            for order in (np.argsort(-ratios, kind="stable"), upwards, upwards[::-1]):
                hits, misses = np.cumsum(others[i][order]), np.cumsum(others[j][order])
                lower = _lower_bound(hits, misses, total, delta, confidence)
                at = int(np.argmax(lower))
                if lower[at] > best:
                    best, pair, chosen = float(lower[at]), (i, j), order[: at + 1]
    return pair, chosen


def _lower_bound(
    hits: NDArray[np.int64], misses: NDArray[np.int64], total: int, delta: float, confidence: float
) -> Floats:
    """The bound from how often a set was hit under the first input and under the second."""
    beta, error = scipy.stats.beta, 0.5 * (1.0 - confidence)
    least = np.where(hits > 0, beta.ppf(error, np.maximum(hits, 1), total - hits + 1.0), 0.0)
    most = np.where(misses < total, beta.isf(error, misses + 1.0, np.maximum(total - misses, 1)), 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(np.maximum(least - delta, 0.0)) - np.log(most), 0.0))


def _describe_outputs(points: Floats, chosen: NDArray[np.intp]) -> str:
    if chosen.size == 1:
        return f"output {points[chosen[0]]:.4g}"
    return f"{chosen.size} of {points.size} outputs"
