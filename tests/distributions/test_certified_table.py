"""Certification: exact integers, directed rounding, and forgeries that must fail."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable, log_ratio_upper
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.errors import CertificationError
from tests.exact import random_distribution

QUARTER = TOTAL_WEIGHT // 4
BOOK = Codebook(np.array([0, 1]), 4.0, -2.0)


def two_point(first: list[int], second: list[int]) -> CertifiedTable:
    return CertifiedTable(BOOK, np.array([first, second]), np.array([0]), np.array([1]))


@given(top=st.integers(1, 2**32), bottom=st.integers(1, 2**32), power=st.sampled_from([1, 2, 37, 1024]))
def test_log_ratio_is_rounded_up_by_less_than_two_ulps(top: int, bottom: int, power: int) -> None:
    top, bottom = max(top, bottom), min(top, bottom)
    certified = log_ratio_upper(top, bottom, power)
    assert certified == log_ratio_upper(top**power, bottom**power)
    with localcontext() as context:
        context.prec = 70
        exact = power * (Decimal(top) / Decimal(bottom)).ln()
        assert Decimal(certified) >= exact
        assert Decimal(certified) <= exact + Decimal(2 * math.ulp(certified)) + Decimal(10) ** -44


@given(seed=st.integers(0, 10_000), levels=st.integers(3, 9), knots=st.integers(2, 12))
def test_rounding_stays_inside_epsilon_and_unbiased(seed: int, levels: int, knots: int) -> None:
    distribution = random_distribution(seed, levels, knots)
    epsilon = distribution.epsilon * (1 + 1e-6)
    table = CertifiedTable.from_distribution(distribution, Codebook.from_values(distribution.values), epsilon)
    assert (table.weights.sum(axis=1) == TOTAL_WEIGHT).all()
    largest = max(
        Fraction(int(column.max()), int(column.min())) for column in table.weights.T if column.max() > 0
    )
    assert Fraction(*table.worst_ratio) == largest
    assert log_ratio_upper(largest.numerator, largest.denominator) == table.epsilon <= epsilon
    assert table.distribution.max_bias <= 1e-8
    assert (
        np.abs(table.distribution.pmf(distribution.starts) - distribution.pmf(distribution.starts)).max()
        < 1e-5
    )


def test_the_tables_own_distribution_is_exact() -> None:
    table = two_point([3 * QUARTER, QUARTER], [QUARTER, 3 * QUARTER])
    assert table.distribution.pmf([-1.0, 0.0, 1.0]).tolist() == [[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]]
    assert table.epsilon >= math.log(3)
    assert table.distribution.max_bias == 0.0


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([3 * QUARTER, QUARTER + 1], [QUARTER, 3 * QUARTER], "sum to 2"),
        ([5 * QUARTER, -QUARTER], [QUARTER, 3 * QUARTER], "must lie in"),
        ([QUARTER, 3 * QUARTER], [3 * QUARTER, QUARTER], "do not increase"),
        ([3 * QUARTER - 1000, QUARTER + 1000], [QUARTER, 3 * QUARTER], "miss a part"),
    ],
)
def test_bad_tables_cannot_be_built(first: list[int], second: list[int], message: str) -> None:
    with pytest.raises(CertificationError, match=message):
        two_point(first, second)


@pytest.mark.parametrize(
    ("starts", "ends"), [([0], [2]), ([-1], [1]), ([], []), ([0, 0], [1]), ([0, 0], [1, 1])]
)
def test_bad_pieces_cannot_be_built(starts: list[int], ends: list[int]) -> None:
    weights = np.array([[3 * QUARTER, QUARTER], [QUARTER, 3 * QUARTER]])
    with pytest.raises(CertificationError, match="pieces"):
        CertifiedTable(BOOK, weights, np.array(starts, dtype=int), np.array(ends, dtype=int))


def test_one_unit_too_much_is_not_certified() -> None:
    """Negative control: the certificate resolves a single unit of 2^-32."""
    exact = two_point([3 * QUARTER, QUARTER], [QUARTER, 3 * QUARTER])
    claim = exact.epsilon
    book = Codebook(np.array([0, 1]), 4.0, -2.0)
    worse = CertifiedTable(
        book,
        np.array([[3 * QUARTER + 1, QUARTER - 1], [QUARTER - 1, 3 * QUARTER + 1]]),
        np.array([0]),
        np.array([1]),
    )
    exact.certify(claim)
    with pytest.raises(CertificationError, match="above the claimed"):
        worse.certify(claim)


def test_a_zero_weight_is_an_infinite_loss() -> None:
    book = Codebook(np.array([0, 1]), 2.0, -1.0)
    table = CertifiedTable(
        book, np.array([[TOTAL_WEIGHT, 0], [0, TOTAL_WEIGHT]]), np.array([0]), np.array([1])
    )
    assert table.epsilon == math.inf
    with pytest.raises(CertificationError):
        table.certify(100.0)


def test_a_distribution_without_room_is_refused_not_bent() -> None:
    distribution = random_distribution(4, 4, 5)
    with pytest.raises(CertificationError):
        CertifiedTable.from_distribution(
            distribution, Codebook.from_values(distribution.values), distribution.epsilon * 0.9
        )
