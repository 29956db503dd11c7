"""Wrong certificates: each must be noticed by the check that the tests of the table make.

The check knows the weights only, and compares fractions. It must pass for the code as it is, and fail for
every wrong variant of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.distributions import certified_table as table_module
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.errors import CertificationError
from tests.controls.mutation import mutated
from tests.exact import random_distribution
from tests.mechanisms.forgery import forged

TABLES = range(6)


def table_of(module: ModuleType, seed: int) -> Any:
    """A table of the module's own kind; the worst ratio is in another column for each seed."""
    distribution = random_distribution(seed, 4 + seed % 3, 5)
    made = table_module.CertifiedTable.from_distribution(
        distribution, Codebook.from_values(distribution.values), distribution.epsilon * 1.001
    )
    return module.CertifiedTable(made.codebook, made.weights, made.start_rows, made.end_rows)


def is_certified(table: Any) -> bool:
    """Whether the certified loss is at least the exact one, and by no more than rounding above it."""
    columns = [column for column in table.weights.T.tolist() if max(column) > 0]
    if min(min(column) for column in columns) == 0:
        return table.epsilon == math.inf
    exact = max(Fraction(max(column), min(column)) for column in columns)
    with localcontext() as context:
        context.prec = 60
        loss = (Decimal(exact.numerator) / Decimal(exact.denominator)).ln()
        return bool(loss <= Decimal(table.epsilon) <= loss + Decimal(2 * math.ulp(table.epsilon)))


def infinite_table(module: ModuleType) -> Any:
    """An output that only one of two inputs can give."""
    book = Codebook(np.array([0, 1, 2]), 2.0, -2.0)
    half = 1 << 31
    weights = np.array([[half, half, 0], [0, half, half]])
    return module.CertifiedTable(book, weights, np.array([0]), np.array([1]))


def all_certified(module: ModuleType) -> bool:
    return all(is_certified(table_of(module, seed)) for seed in TABLES) and is_certified(
        infinite_table(module)
    )


WRONG = {
    "skips a column": (
        "largest, smallest = self.weights.max(axis=0), self.weights.min(axis=0)",
        "largest, smallest = self.weights.max(axis=0)[:-1], self.weights.min(axis=0)[:-1]",
    ),
    "keeps the smaller ratio": ("if a * bottom > top * b:", "if a * bottom < top * b:"),
    "rounds the logarithm down": (
        "return nearest if nearest >= exact else math.nextafter(nearest, math.inf)",
        "return nearest if nearest <= exact else math.nextafter(nearest, 0.0)",
    ),
}


def test_the_certificate_passes_its_check() -> None:
    assert all_certified(table_module)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_certificate_is_noticed(name: str) -> None:
    assert not all_certified(mutated(table_module, *WRONG[name]))


def forgeries() -> Iterator[bytes]:
    """Mechanisms that claim less than they lose, by a factor or by the last digit."""
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    for claim in (0.5, math.nextafter(mechanism.epsilon, 0.0)):
        yield forged(mechanism, epsilon=claim.hex())


def refuses_forgeries() -> bool:
    for blob in forgeries():
        try:
            pq.Mechanism.from_bytes(blob)
        except CertificationError:
            continue
        return False
    return True


@pytest.mark.parametrize(
    "wrong",
    [
        lambda self, epsilon: self,
        lambda self, epsilon: self if self.epsilon <= epsilon * (1.0 + 1e-12) else _refuse(),
    ],
    ids=["trusts the claim", "has a tolerance"],
)
def test_a_lax_certification_lets_forgeries_pass(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]
) -> None:
    assert refuses_forgeries()
    monkeypatch.setattr(table_module.CertifiedTable, "certify", wrong)
    assert not refuses_forgeries()


def _refuse() -> None:
    raise CertificationError("refused")
