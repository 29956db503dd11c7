"""A server that chooses the next kind of release by what the client has answered, within a budget.

The budget is a client's own, or that of an honest server whose policy looks at earlier rounds.

The best such server is found by dynamic programming. What it has seen is a privacy loss; what it may still
ask for depends on how many releases of each kind there were. From the end backwards, the value of a state is
the delta that the best continuation reaches at the budget's epsilon. All kinds here are randomized responses
whose losses are whole multiples of one unit, so that the values are exact sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Budget, Release, SpendingLedger
from fl_privquant.accounting.ledgers.server_ledger import FederationLedger
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import BudgetExhaustedError
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower.policies.schedules import (
    Policy,
    QuantileClip,
    ScheduledMechanism,
    as_policy,
)
from tests.flower.apps import client_app, fedavg, simulate

UNIT = 0.1
FIRST, *OTHERS = KINDS = tuple(
    Release(pq.design("one_bit", epsilon=steps * UNIT), coordinates)
    for steps, coordinates in ((3, 30), (20, 3), (2, 100))
)
STEPS = (3, 20, 2)
MAX_RELEASES = 5
# Losses on a grid of units; no path of so many releases leaves it.
REACH = 1 + MAX_RELEASES * max(steps * kind.dimension for steps, kind in zip(STEPS, KINDS, strict=True))
LOSSES = UNIT * np.arange(-REACH, REACH + 1)

Counts = tuple[int, ...]


def loss_distribution(kind: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The losses of a release in units, and their probabilities."""
    coordinates = KINDS[kind].dimension
    ones = np.arange(coordinates + 1)
    right = 1.0 / (1.0 + math.exp(-KINDS[kind].mechanism.epsilon))
    return STEPS[kind] * (2 * ones - coordinates), binom.pmf(ones, coordinates, right)


def best_server(budget: Budget, allows: Callable[[Counts, int], bool]) -> float:
    """The delta at the budget's epsilon that the best server reaches, whose first kind is the first."""

    @cache
    def value(counts: Counts) -> NDArray[np.float64]:
        # The largest delta from here on, for every loss that may have been seen.
        best = np.maximum(-np.expm1(np.minimum(budget.epsilon - LOSSES, 0.0)), 0.0)
        if sum(counts) == MAX_RELEASES:
            return best
        for kind in range(len(KINDS)):
            if (sum(counts) > 0 or kind == 0) and allows(counts, kind):
                after = value(tuple(count + (kind == own) for own, count in enumerate(counts)))
                moves, likely = loss_distribution(kind)
                ahead = sum(
                    share * np.pad(after, REACH, mode="edge")[REACH + move : REACH + move + after.size]
                    for move, share in zip(moves, likely, strict=True)
                )
                best = np.maximum(best, ahead)
        return best

    return float(value((0,) * len(KINDS))[REACH])


def servers_rule(budget: Budget, chosen: bool) -> Callable[[Counts, int], bool]:
    """Whether a server with that budget asks a client for one more release of a kind."""

    def allows(counts: Counts, kind: int) -> bool:
        ledger, number = FederationLedger(), 0
        for release, count in zip(KINDS, counts, strict=True):
            for _ in range(count):
                number += 1
                ledger.ask(number, release, [1])
        try:
            ledger.check(number + 1, KINDS[kind], [1], budget, chosen)
        except BudgetExhaustedError:
            return False
        return True

    return cache(allows)


def rule(budget: Budget, chosen: bool) -> Callable[[Counts, int], bool]:
    """Whether a client with that budget makes one more release of a kind."""

    def allows(counts: Counts, kind: int) -> bool:
        accountant = Accountant()
        for release, count in zip(KINDS, counts, strict=True):
            if count:
                accountant.add(release, count)
        try:
            accountant.check(1 + sum(counts), KINDS[kind], [budget], chosen=chosen)
        except BudgetExhaustedError:
            return False
        return True

    return cache(allows)


# After the first release either of the others just fits in.
TIGHT = Budget(max(Accountant([FIRST, other]).statement(3e-5).epsilon for other in OTHERS), 3e-5)


@pytest.mark.parametrize(
    "budget",
    [TIGHT, *(Budget(epsilon, delta) for epsilon in (8.0, 12.0, 16.0) for delta in (1e-5, 1e-3))],
    ids=str,
)
def test_no_choice_of_kinds_exceeds_a_clients_budget(budget: Budget) -> None:
    assert best_server(budget, rule(budget, chosen=True)) <= 1.01 * budget.delta


@pytest.mark.parametrize("budget", [TIGHT, Budget(12.0, 1e-5), Budget(16.0, 1e-3)], ids=str)
def test_no_policy_exceeds_the_servers_budget(budget: Budget) -> None:
    """A policy that chooses kinds by what the server saw: its target is no more than what it says."""
    assert best_server(budget, servers_rule(budget, chosen=True)) <= budget.delta


def test_a_policy_would_gain_if_kinds_were_composed_as_used() -> None:
    """The negative control, for the server's budget."""
    assert best_server(TIGHT, servers_rule(TIGHT, chosen=False)) > 1.8 * TIGHT.delta


FINE, COARSE = (pq.design("grr", epsilon=1.0, levels=levels) for levels in (4, 2))
ENCODING = Encoding(COARSE, clip=0.1)
CLIPPED = Encoding(COARSE, clip=0.1, l2_clip=1.0)


@pytest.mark.parametrize(
    ("policy", "adaptive"),
    [
        (as_policy(ENCODING), False),
        (ScheduledMechanism(ENCODING, {3: FINE}), False),
        (as_policy(lambda server_round: ENCODING), True),
        (ScheduledMechanism(lambda server_round: ENCODING, {3: FINE}), True),
        (QuantileClip(ENCODING), True),
        (ScheduledMechanism(QuantileClip(ENCODING), {3: FINE}), True),
        # Both clips change by the same power of two, so that the ratio that decides the cost stays.
        (QuantileClip(CLIPPED), False),
        (QuantileClip(ScheduledMechanism(CLIPPED, {3: FINE})), False),
        (QuantileClip(lambda server_round: CLIPPED), True),
    ],
)
def test_policies_say_whether_they_look_at_earlier_rounds(policy: Policy, adaptive: bool) -> None:
    assert policy.adaptive is adaptive


@pytest.mark.parametrize("adaptive", [False, True])
def test_runs_count_adaptive_policies_by_the_filter(adaptive: bool) -> None:
    """The same two mechanisms: on a schedule that is known beforehand they are composed, else filtered."""
    schedule = ScheduledMechanism(ENCODING, {2: FINE})
    budget = Budget(Accountant([Release(each, 25) for each in (COARSE, FINE)]).statement(1e-5).epsilon, 1e-5)
    policy = (lambda server_round: schedule(server_round)) if adaptive else schedule
    strategy = PrivQuantStrategy(fedavg(), policy, budget=budget)
    simulate(strategy, client_app([PrivQuantMod(1.0)]), num_rounds=2)
    assert len(strategy.ledger) == (1 if adaptive else 2)


def test_the_server_would_gain_if_kinds_were_composed_as_used() -> None:
    """The negative control: the count that assumes kinds known in advance lets it have more."""
    assert best_server(TIGHT, rule(TIGHT, chosen=False)) > 1.8 * TIGHT.delta


def test_clients_count_several_kinds_so_and_go_on_with_them() -> None:
    budget = Budget(16.0, 1e-3)
    ledger = SpendingLedger()
    ledger.spend(1, FIRST, budget)
    ledger.spend(2, OTHERS[0], budget)

    def many() -> None:
        for number in range(3, 50):
            ledger.spend(number, OTHERS[1], budget)

    with pytest.raises(BudgetExhaustedError, match="chosen by earlier answers"):
        many()


@pytest.mark.parametrize("budget", [Budget(0.0, 1e-5), Budget(1e-9, 1e-300), Budget(1e300, 5e-324)])
def test_extreme_budgets_are_decided(budget: Budget) -> None:
    allows = rule(budget, chosen=True)
    assert allows((1, 0, 0), 1) is (budget.epsilon > 1.0)


def test_statements_of_several_kinds_name_the_assumption() -> None:
    text = "did not depend on what earlier ones showed"
    assert any(text in line for line in Accountant(KINDS).statement(1e-5).assumptions)
    assert not any(text in line for line in Accountant([FIRST, FIRST]).statement(1e-5).assumptions)
    assert not any(text in line for line in Accountant(KINDS).statement(0.0).assumptions)
