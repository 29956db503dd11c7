"""Wrong accounting: a bound below what enumeration finds must be noticed, for sums and for compositions."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Release, View
from fl_privquant.privacy_loss.composition import loss_distribution as loss_module
from fl_privquant.privacy_loss.sums import blanket as blanket_module
from fl_privquant.privacy_loss.sums import gaussian_bound as secure_sum_module
from tests.controls.mutation import mutated
from tests.exact import blanket_delta, hockey_stick, response_epsilon
from tests.privacy_loss.sums.test_gaussian_bound import (
    distribution_pairs,
    hockey_excess,
    renyi_excess,
    table_of,
)

CLIENTS = (2, 7, 30)
EPSILONS = (0.0, 0.1, 0.4, 0.8)


def covers_the_sum(module: ModuleType) -> bool:
    """Whether the loss of a sum is never below what enumeration finds."""
    table = pq.design("one_bit", epsilon=1.0).table
    for clients in CLIENTS:
        loss = module.blanket_loss(table, clients)
        for epsilon in EPSILONS:
            if loss.delta(epsilon) < blanket_delta(table.distribution.rows, clients, epsilon) * (1.0 - 1e-9):
                return False
    return True


WRONG_BLANKETS = {
    "too large a share": (
        "share = int(low.sum()) / TOTAL_WEIGHT",
        "share = 1.05 * int(low.sum()) / TOTAL_WEIGHT",
    ),
    "the protected client counts as its own cover": (
        "range(1, num_honest),\n",
        "range(1, num_honest + 1),\n",
    ),
}


def test_the_blanket_passes_its_check() -> None:
    assert covers_the_sum(blanket_module)


@pytest.mark.parametrize("name", WRONG_BLANKETS)
def test_a_wrong_blanket_is_noticed(name: str) -> None:
    assert not covers_the_sum(mutated(blanket_module, *WRONG_BLANKETS[name]))


def bounds_every_pair(module: ModuleType) -> bool:
    """Whether no two inputs are told apart in the sum better than certified, by enumeration."""
    table = table_of(np.array([[0.3, 0.22, 0.2, 0.28], [0.28, 0.2, 0.22, 0.3]]))
    for clients in (3, 5):
        certificate = module.certify_sum(table, clients)
        pairs = distribution_pairs(table, clients - 1)
        if hockey_excess(pairs, certificate.separation(1e-9), 1e-9) > 1e-14:
            return False
        if renyi_excess(pairs, certificate.renyi) > 1e-12:
            return False
    return True


WRONG_CERTIFICATES = {
    "the protected client counts as its own cover": ("num_honest - 1, share", "num_honest, share"),
    "too large a share": (
        "share = float(low.sum())",
        "share = min(1.3 * float(low.sum()), 1.0)",
    ),
}


def test_the_certificate_of_a_sum_passes_its_check() -> None:
    assert bounds_every_pair(secure_sum_module)


@pytest.mark.parametrize("name", WRONG_CERTIFICATES)
def test_a_wrong_certificate_of_a_sum_is_noticed(name: str) -> None:
    assert not bounds_every_pair(mutated(secure_sum_module, *WRONG_CERTIFICATES[name]))


def counts_all(make: Callable[[], Any] = Accountant) -> bool:
    """Whether the local total of equal one-bit releases is at least the exact one, and near it."""
    mechanism = pq.design("one_bit", epsilon=0.3)
    for dimension, rounds in ((1, 1), (1, 6), (5, 4)):
        accountant = make()
        for _ in range(rounds):
            accountant.add(Release(mechanism, dimension))
        found = accountant.statement(delta=1e-4).epsilon
        exact = response_epsilon(mechanism.epsilon, dimension * rounds, 1e-4)
        if not exact * (1.0 - 1e-9) <= found <= exact * 1.02 + 1e-6:
            return False
    return True


def stays_local() -> bool:
    """Whether more eyes never cost less: corrupt and dropped clients protect nobody."""
    mechanism = pq.design("one_bit", epsilon=0.5)

    def spent(view: View) -> float:
        accountant = Accountant()
        accountant.add(Release(mechanism, 50, view), count=2)
        return float(accountant.statement(delta=1e-5).epsilon)

    alone = spent(View())
    return spent(View.aggregate(20, corrupt=19)) == alone and spent(
        View.aggregate(20, corrupt=5, dropped=5)
    ) == spent(View.aggregate(10))


def test_the_accountant_passes_its_checks() -> None:
    assert counts_all()
    assert stays_local()


class Forgetful(Accountant):
    """Drops a release that is like one it knows."""

    def add(self, release: Release, count: int = 1) -> None:
        if release not in self._counts:
            super().add(release, count)


def test_an_accountant_that_drops_something_is_noticed() -> None:
    assert not counts_all(Forgetful)


def test_corrupt_clients_that_count_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        View, "aggregate", classmethod(lambda cls, num_clients, corrupt=0, dropped=0: cls(num_clients))
    )
    assert not stays_local()


WRONG_LOSSES = {
    "a grid that rounds losses down": (
        "masses = np.bincount(index, self.masses - upper, size) + np.bincount(index + 1, upper, size)",
        "masses = np.bincount(index, self.masses, size)",
    ),
    "infinite losses forgotten": (
        "* (1.0 + self.slack) + self.infinity, 1.0)",
        "* (1.0 + self.slack), 1.0)",
    ),
}


def losses_are_upper_bounds(module: ModuleType) -> bool:
    """Whether delta is never below that of the pair of distributions: as it is, and on a grid."""
    first, second = np.array([0.55, 0.25, 0.15, 0.05]), np.array([0.2, 0.3, 0.25, 0.25])
    order = np.argsort(first / second)
    exact = module.PrivacyLoss(np.log(first / second)[order], first[order])
    some_infinite = module.PrivacyLoss(exact.losses, 0.9 * exact.masses, infinity=0.1)
    start, masses = exact.on_grid(0.17)
    coarse = module.PrivacyLoss(0.17 * (start + np.arange(masses.size)), np.maximum(masses, 0.0))
    for epsilon in (0.0, 0.05, 0.2, 0.6):
        needed = hockey_stick(first, second, epsilon) * (1.0 - 1e-9)
        if exact.delta(epsilon) < needed or coarse.delta(epsilon) < needed:
            return False
        if some_infinite.delta(epsilon) < 0.9 * needed + 0.1:
            return False
    return math.isinf(some_infinite.max_loss)


def test_losses_pass_their_check() -> None:
    assert losses_are_upper_bounds(loss_module)


@pytest.mark.parametrize("name", WRONG_LOSSES)
def test_a_loss_that_is_too_small_is_noticed(name: str) -> None:
    assert not losses_are_upper_bounds(mutated(loss_module, *WRONG_LOSSES[name]))
