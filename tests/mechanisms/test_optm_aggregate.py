"""OPTM for the secure sum: its target is met, its error is close to a central Gaussian's, attacks fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

import fl_privquant as pq
from fl_privquant.design.aggregate import aggregate_law, aggregate_table, best_shape
from fl_privquant.mechanisms.optm_aggregate import usual_norm_ratio
from fl_privquant.normal import gaussian_separation
from fl_privquant.privacy.accountant import Accountant
from fl_privquant.privacy.events import UpdateRelease
from fl_privquant.privacy.norm import Norms
from fl_privquant.privacy.statement import PrivacyStatement, View
from fl_privquant.secure_sum import certify_sum


def spent(mechanism: Any, clients: int, dimension: int, rounds: int) -> PrivacyStatement:
    """What a run costs a client, seen through sums over that many honest clients."""
    accountant = Accountant()
    norms = Norms(l2=usual_norm_ratio(dimension))
    accountant.add(UpdateRelease(mechanism, dimension, View.aggregate(clients), norms=norms), rounds)
    return accountant.statement(1e-5)


# Not more than the error of a central Gaussian times this, at equal (epsilon, 1e-5), T = 50, d = 7850.
LARGEST_RATIO = {100: 1.35, 1000: 1.15}


@pytest.mark.parametrize(
    ("clients", "epsilon"), [(100, 1.0), (100, 4.0), (100, 10.0), (1000, 1.0), (1000, 4.0), (1000, 10.0)]
)
def test_a_whole_run_meets_its_target_at_nearly_the_error_of_a_central_gaussian(
    clients: int, epsilon: float
) -> None:
    dimension, rounds = 7850, 50
    mechanism = pq.design(
        "optm",
        objective="aggregate",
        run_epsilon=epsilon,
        rounds=rounds,
        num_clients=clients,
        dimension=dimension,
        bits=2,
    )
    assert mechanism.name == "optm_aggregate"
    assert mechanism.bits_per_coordinate <= 3.0
    statement = spent(mechanism, clients, dimension, rounds)
    assert 0.99 * epsilon < statement.epsilon <= epsilon
    # The sum of updates of norm R, at most 2 R apart, with normal noise; per client, in units of clip^2.
    distance = 2.0 * usual_norm_ratio(dimension)
    deviation = distance * math.sqrt(rounds) / gaussian_separation(epsilon, 1e-5)
    assert 1.0 < mechanism.mse() / (deviation**2 / clients) <= LARGEST_RATIO[clients]


def test_honest_survivors_are_what_counts() -> None:
    wished = {"run_epsilon": 8.0, "rounds": 10, "dimension": 1000, "num_clients": 100}
    all_honest = pq.design("optm_aggregate", **wished)
    fewer = pq.design("optm_aggregate", **wished, corrupt_fraction=0.1, dropout_fraction=0.1)
    assert spent(all_honest, 100, 1000, 10).epsilon <= 8.0 < spent(all_honest, 80, 1000, 10).epsilon
    assert spent(fewer, 80, 1000, 10).epsilon <= 8.0
    assert fewer.mse() > 1.2 * all_honest.mse()


def test_an_error_can_be_given_instead_of_a_target() -> None:
    mechanism = pq.design("optm", objective="aggregate", mse=50.0, num_clients=200, dimension=1000)
    assert mechanism.mse() == pytest.approx(50.0, rel=1e-4)
    certificate = certify_sum(mechanism.table, 200)
    assert certificate is not None
    # No mechanism with that error hides a client better than normal noise would.
    assert 0.9 < 1.0 / (200 * 50.0 * certificate.information) < 1.0


def test_the_program_maximises_the_blanket() -> None:
    """A signal on the values +-b, of probability 1 / b, wastes b of the second moment: here b = 3, or 9."""
    values = np.array([-9.0, -3.0, 3.0, 9.0])
    law = aggregate_law(values, 50.0, 0.0)
    row = law.end_rows[-1]
    assert row @ values == pytest.approx(1.0)
    assert row @ values**2 == pytest.approx(50.0)
    assert law.rows.min(axis=0) @ values**2 == pytest.approx(50.0 - 3.0)
    coin = aggregate_law(values[[0, 3]], 81.0, 0.0)
    assert coin.rows.min(axis=0) @ values[[0, 3]] ** 2 == pytest.approx(81.0 - 9.0)


def test_two_bits_are_better_than_one() -> None:
    found = [best_shape(levels, 40.0, 1.0 / 3.0, 1000, 1e-15)[1] for levels in (2, 4)]
    assert found[0] > found[1]


def test_values_are_on_a_lattice_and_unbiased() -> None:
    shape, _ = best_shape(5, 60.0, 1.0 / 3.0, 100, 1e-15)
    table = aggregate_table(shape, 60.0, 1.0 / 3.0)
    assert table.codebook.codes[0] == 0
    assert np.gcd.reduce(table.codebook.codes) == 1
    assert abs(table.knots[0] + 1.0) < 1e-8
    assert abs(table.knots[-1] - 1.0) < 1e-8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run_epsilon": None}, "give one of the two"),
        ({"mse": 3.0}, "give one of the two"),
        ({"run_epsilon": -1.0}, "epsilon"),
        ({"levels": 64}, "levels: 64 is above 16"),
        ({"num_clients": 1}, "a sum needs 2 or more"),
        ({"dropout_fraction": 1.0}, "dropout_fraction: 1.0 is outside"),
        ({"norm_ratio": 0.0}, "norm_ratio"),
        ({"dimension": 0}, "dimension"),
        ({"density": np.array([0.1, 0.2, 0.9])}, "symmetric"),
    ],
)
def test_impossible_wishes_are_refused(changes: dict[str, Any], words: str) -> None:
    wish: dict[str, Any] = {"run_epsilon": 4.0, "num_clients": 50, "dimension": 100}
    with pytest.raises(pq.InvalidSpecError, match=words):
        pq.design("optm_aggregate", **(wish | changes))


def attack(mechanism: Any, clients: int, dimension: int, trials: int) -> float:
    """Lower bound on epsilon at delta 1e-3, 99.99 % sure, of telling two updates apart by the sum.

    The best direction, the best test: the likelihood ratio of nearly normal sums is linear in them.
    """
    update = np.full(dimension, usual_norm_ratio(dimension) / math.sqrt(dimension))
    stream = pq.RandomStream.seeded(11)

    def statistics(protected: np.ndarray) -> np.ndarray:
        others = mechanism.encode(np.zeros((trials, clients - 1, dimension), dtype=np.float32), rng=stream)
        own = mechanism.encode(np.tile(protected, (trials, 1)), rng=stream)
        codes = mechanism.codes
        return codes[others].sum(axis=(1, 2)) + codes[own].sum(axis=1)

    first, second = statistics(update), statistics(-update)
    half = trials // 2
    # The threshold is chosen on one half of the trials, and judged on the other.
    grid = np.quantile(first[:half], np.linspace(0.01, 0.99, 99))

    def bound(above_first: int, above_second: int, total: int) -> float:
        least = beta.ppf(5e-5, max(above_first, 1), total - above_first + 1)
        most = beta.isf(5e-5, above_second + 1, max(total - above_second, 1))
        return float(np.log(max(least - 1e-3, 1e-12) / most))

    chosen = max(
        grid, key=lambda t: bound(int((first[:half] > t).sum()), int((second[:half] > t).sum()), half)
    )
    return bound(int((first[half:] > chosen).sum()), int((second[half:] > chosen).sum()), trials - half)


def test_an_attack_on_the_real_encoder_never_beats_the_certificate() -> None:
    """False alarm with probability below 1e-4. On one client alone the same attack succeeds."""
    dimension, clients = 400, 10
    mechanism = pq.design(
        "optm_aggregate", run_epsilon=3.0, run_delta=1e-3, num_clients=clients, dimension=dimension
    )
    reached = attack(mechanism, clients, dimension, 8000)
    assert 1.0 < reached <= 3.0
    assert attack(mechanism, 1, dimension, 8000) > 3.0
