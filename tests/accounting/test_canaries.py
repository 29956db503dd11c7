"""The audit of a whole run: close to what is stated, never above it, and above it where noise is missing."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

import fl_privquant as pq
from fl_privquant.accounting import (
    Canaries,
    CanaryBound,
    PrivacyStatement,
    Relation,
    SimulatedSum,
    Unit,
    audit_scores,
    bound_of_outputs,
    guessing_bound,
)
from fl_privquant.accounting.canaries import _epsilon_of_guesses
from fl_privquant.errors import InvalidSpecError
from fl_privquant.planning import Plan, Target

CANARIES, DIMENSION, ROUNDS = 1000, 1200, 2
# Of 1250 clients that are asked, a tenth is corrupt and a tenth is lost.
ASKED = 1250


@lru_cache(maxsize=1)
def _plan() -> Plan:
    target = Target(epsilon=4.0, rounds=ROUNDS, num_clients=ASKED)
    sums = SimulatedSum(corrupt_fraction=0.1, dropout_fraction=0.1)
    return target.plan(DIMENSION, 1.0, mechanism="rounded_gaussian", aggregation=sums, force=True)


def _attack(seed: int, num_others: int = 0, factor: float = 1.0) -> CanaryBound:
    """The audit of a run whose sums have 1000 canaries and some honest clients that send zeros.

    ``factor`` is by how much canaries are longer than clients may be: a clip that is not done.
    """
    encoding, canaries = _plan().encoding, Canaries(CANARIES, DIMENSION, seed=seed)
    mechanism, rng = encoding.mechanism, pq.RandomStream.seeded(seed)
    sent = np.array([canaries.update(number, factor) for number in range(CANARIES)])
    sent = np.concatenate([sent, np.zeros((num_others, DIMENSION))])
    seen: list[NDArray[np.float64]] = []
    for _ in range(ROUNDS):
        codes = mechanism.to_codes(mechanism.encode(sent, encoding.clip, rng)).reshape(len(sent), DIMENSION)
        total = codes.sum(axis=0, dtype=np.int64) % (1 << mechanism.sum_bits(len(sent)))
        seen.append(mechanism.decode_sum(total, len(sent), encoding.clip) * len(sent))
    scores, terms = canaries.score(seen), ROUNDS * DIMENSION
    return audit_scores(scores, canaries.coins, _plan().statement, num_terms=terms)


def test_the_bound_of_a_sum_is_close_to_what_is_stated():
    """The adversary knows the corrupt clients' codes: what is left is the sum of exactly the stated number.

    The bound has a standard deviation of about 0.35, and a mean of about 3.4.
    """
    assert _plan().statement.view.min_honest == CANARIES - CANARIES % 8
    bounds = [_attack(seed) for seed in range(5)]
    assert all(bound.method == "normal scores" for bound in bounds)
    assert np.median([bound.lower for bound in bounds]) >= 0.75 * 4.0
    assert all(bound.lower < bound.estimate < bound.upper for bound in bounds)


def test_no_bound_of_fifty_runs_is_above_what_is_stated():
    """In these runs the 125 corrupt clients add their noise too, as the attack does not know it.

    The true separation is then 0.94 of the stated one, and a bound is above with a probability of some 0.01.
    It would be 0.05 if it were the stated one: more than 7 of 50 would then have odds of 1 in 250.
    """
    bounds = [_attack(seed, num_others=125) for seed in range(50)]
    assert not any(bound.refuted for bound in bounds)
    assert np.median([bound.lower for bound in bounds]) >= 0.75 * 4.0


def test_updates_that_are_clipped_twice_as_long_are_found():
    """The control: with the norm doubled, the separation is twice the stated one."""
    bound = _attack(0, num_others=125, factor=2.0)
    assert bound.refuted
    assert "REFUTED" in str(bound)


def test_the_bound_of_one_coordinate_in_the_local_view_is_tight():
    """1000 canaries, each with 650 coordinates at one end of the clip or at the other, in 50 repetitions.

    The truth is stated, so that a bound is above it with a probability of 1e-4, one minus its confidence: any
    of 50 have odds of 1 in 200. With a confidence of 0.95 it would be two or three of them.
    """
    mechanism = pq.design("optm", epsilon=4.0, bits=2)
    claimed = PrivacyStatement(mechanism.epsilon, 0.0, Unit.COORDINATE)
    for seed in range(50):
        rng = pq.RandomStream.seeded(seed)
        low, high = (mechanism.encode(np.full(500 * 650, end), rng=rng) for end in (-1.0, 1.0))
        bound = bound_of_outputs(low, high, claimed)
        assert 0.95 * mechanism.epsilon <= bound.lower <= mechanism.epsilon
        assert not bound.refuted


def test_too_little_noise_in_the_local_view_is_found():
    mechanism = pq.design("optm", epsilon=4.0, bits=2)
    rng = pq.RandomStream.seeded(0)
    low, high = (mechanism.encode(np.full(500 * 650, end), rng=rng) for end in (-1.0, 1.0))
    assert bound_of_outputs(low, high, PrivacyStatement(3.5, 0.0, Unit.COORDINATE)).refuted


def _statement(epsilon: float, relation: Relation = Relation.ZERO_OUT) -> PrivacyStatement:
    return PrivacyStatement(epsilon, 1e-5, Unit.TOTAL, relation=relation)


def test_scores_that_are_not_normal_are_analyzed_by_guesses():
    rng = np.random.default_rng(0)
    coins = rng.random(1000) < 0.5
    bound = audit_scores(rng.standard_cauchy(1000) + 2.0 * coins, coins, _statement(8.0), num_terms=1000)
    assert bound.method == "guesses"
    assert 0.0 < bound.lower < 8.0


def test_guesses_of_randomized_response_do_not_exceed_its_epsilon():
    """Each of 100 bounds exceeds it with probability 0.05 at most: more than 14 have odds below 1 in 5000."""
    epsilon, exceeded, positive = 1.5, 0, 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        coins = rng.random(1000) < 0.5
        right = rng.random(1000) < 1.0 / (1.0 + np.exp(-epsilon))
        scores = np.where(coins == right, 1.0, -1.0) + 1e-3 * rng.standard_normal(1000)
        bound = guessing_bound(scores, coins, 0.0)
        exceeded += bound > epsilon
        positive += bound > 0.6 * epsilon
    assert exceeded <= 14
    assert positive >= 90


def test_all_guesses_right_bound_epsilon_as_a_binomial_does():
    """100 right guesses: (e^ε / (1 + e^ε))^100 = 0.05."""
    root = 0.05**0.01
    expected = np.log(root / (1.0 - root))
    assert _epsilon_of_guesses(100, 100, 100, 0.0, 0.05) == pytest.approx(expected, abs=1e-4)
    # A delta can only lower the bound.
    assert _epsilon_of_guesses(100, 100, 100, 1e-4, 0.05) < expected


def test_the_interval_of_normal_scores_has_its_odds():
    """The lower end is above the truth in about 5 % of 400 draws; 34 or more have odds of 1 in 600."""
    above = below = 0
    for seed in range(400):
        rng = np.random.default_rng([7, seed])
        coins = rng.random(200) < 0.5
        bound = audit_scores(rng.standard_normal(200) + 1.0 * coins, coins, _statement(5.0), num_terms=1000)
        if bound.method == "normal scores":
            truth = scipy.optimize.brentq(lambda e: _gaussian_delta(1.0, e) - 1e-5, 0.1, 20.0)
            above += bound.lower > truth
            below += bound.upper < truth
    assert 4 <= above < 34
    assert 4 <= below < 34


def _gaussian_delta(separation: float, epsilon: float) -> float:
    low, high = epsilon / separation - separation / 2.0, epsilon / separation + separation / 2.0
    return float(scipy.stats.norm.sf(low) - np.exp(epsilon) * scipy.stats.norm.sf(high))


def test_canaries_of_zero_out_are_zero_or_a_direction():
    canaries = Canaries(30, 10, Relation.ZERO_OUT)
    norms = np.array([np.linalg.norm(canaries.update(number, 3.0)) for number in range(30)])
    assert np.allclose(norms, 3.0 * canaries.coins)
    wide = Canaries(30, 50).directions
    assert np.allclose(wide @ wide.T, np.eye(30))


def test_audits_of_too_few_canaries_are_refused():
    with pytest.raises(InvalidSpecError, match="20"):
        Canaries(19, 10)
    with pytest.raises(InvalidSpecError, match="8 of each kind"):
        audit_scores(np.zeros(30), np.ones(30, bool), _statement(1.0))
    with pytest.raises(InvalidSpecError, match="finite"):
        audit_scores(np.full(30, np.nan), np.arange(30) < 15, _statement(1.0))
    with pytest.raises(InvalidSpecError, match="1000"):
        bound_of_outputs(np.zeros(9), np.zeros(9), _statement(1.0))


def _cost_of_bits(epsilon: float, bits: int, delta: float) -> float:
    """The ε of so many randomized bits together, from binomials."""
    right = np.arange(bits + 1)
    odds = scipy.stats.binom.pmf(right, bits, 1.0 / (1.0 + np.exp(-epsilon)))
    loss = (2 * right - bits) * epsilon

    def excess(total: float) -> float:
        return float(odds @ np.maximum(-np.expm1(np.minimum(total - loss, 0.0)), 0.0)) - delta

    return float(scipy.optimize.brentq(excess, 0.0, bits * epsilon))


@pytest.mark.parametrize(
    ("epsilon", "bits"), [(1.0, 8), (1.0, 100), (1.5, 300), (2.0, 100), (4.0, 300), (0.1, 1000)]
)
def test_bounded_noise_whose_scores_look_normal_is_not_refuted(epsilon, bits):
    """A canary's coordinates are far beyond the clip, and sent as bits; the attack weighs them."""
    rng = np.random.default_rng(0)
    coins = rng.random(2000) < 0.5
    weights = np.abs(rng.standard_normal((2000, bits)))
    right = np.where(rng.random((2000, bits)) < 1.0 / (1.0 + np.exp(-epsilon)), 1.0, -1.0)
    scores = np.where(coins, 1.0, -1.0) * (weights * right).sum(axis=1) / np.linalg.norm(weights, axis=1)
    stated = PrivacyStatement(_cost_of_bits(epsilon, bits, 1e-5), 1e-5, Unit.TOTAL)
    bound = audit_scores(scores, coins, stated, num_terms=bits)
    assert 0.0 < bound.lower <= stated.epsilon
    assert (bound.method == "normal scores") == (bits >= 100 and epsilon <= 1.0)


def test_normal_scores_say_nothing_without_a_delta():
    """Normal noise is not private then, and whether there is any cannot be seen."""
    rng = np.random.default_rng(0)
    coins = rng.random(1000) < 0.5
    stated = PrivacyStatement(8.0, 0.0, Unit.TOTAL)
    bound = audit_scores(rng.standard_normal(1000) + 1.0 * coins, coins, stated, num_terms=1000)
    assert (bound.method, bound.refuted) == ("guesses", False)
    assert "ε >= " in str(bound)
