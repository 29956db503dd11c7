"""Who may be asked, what a sampling promises, and how ledgers and targets count it."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

import fl_privquant as pq
from fl_privquant.accounting import (
    Accountant,
    FederationLedger,
    PerClient,
    Release,
    SecureSum,
    SumOfCodes,
    View,
)
from fl_privquant.errors import InvalidSpecError
from fl_privquant.planning import (
    ClientSampling,
    CohortSampling,
    FixedSampling,
    PoissonSampling,
    StrategySampling,
    Target,
)
from fl_privquant.privacy_loss.update_bounds import UpdateNorms

DELTA = 1e-5
ONE = pq.design("one_bit", epsilon=0.5)
RELEASE = Release(ONE, 40, norms=UpdateNorms(l2=1.0))
TARGET = Target(epsilon=8.0, rounds=100, num_clients=50, participations=10)


def run(
    sampling: ClientSampling, rounds: range, ledger: FederationLedger, population: int = 40
) -> list[list[int]]:
    """Who is asked in each round, by the ledger."""
    nodes = list(range(1, population + 1))
    asked = []
    for number in rounds:
        able = [node for node in nodes if sampling.is_eligible(number, *ledger.participation(node))]
        asked.append(sampling.draw_clients(number, able, population))
        if asked[-1]:
            ledger.ask(number, RELEASE, asked[-1])
    return asked


def max_participations(rounds: list[list[int]]) -> int:
    """How many of the rounds asked one client, at most."""
    return max(Counter(itertools.chain(*rounds)).values())


def test_cohorts_ask_each_client_once_in_so_many_rounds() -> None:
    sampling = CohortSampling(5, seed=1)
    asked = run(sampling, range(1, 24), FederationLedger())
    assert all(len(cohort) == 8 for cohort in asked)
    for first in range(len(asked) - 4):
        assert max_participations(asked[first : first + 5]) == 1
    assert max_participations(asked) <= sampling.max_rounds(23) == 5
    # Negative control: without a memory somebody is asked again at once.
    forgetful = [sampling.draw_clients(number, range(1, 41), 40) for number in range(1, 24)]
    assert max_participations(forgetful[:5]) > 1


def test_a_resumed_run_keeps_counts_and_rests() -> None:
    """Also of a round that was asked for, and whose answers the crash has lost."""
    sampling, ledger = CohortSampling(5, seed=1), FederationLedger()
    before = run(sampling, range(1, 8), ledger)
    resumed = FederationLedger.from_dict(ledger.to_dict())
    assert [resumed.participation(node) for node in range(41)] == [
        ledger.participation(node) if node else (2, 7) for node in range(41)
    ]
    # Round 7 is asked for again: those of the rounds 3 to 7, everybody, must rest.
    assert run(sampling, range(7, 8), resumed) == [[]]
    after = run(sampling, range(8, 15), resumed)
    for first in range(10):
        assert max_participations((before + after)[first : first + 5]) == 1
    # A client with another name may be any of them: it has had the most rounds, and the last one.
    assert resumed.participation(999) == (2, 7)


def test_a_bound_on_participation_holds_whoever_is_drawn() -> None:
    ledger = FederationLedger()
    asked = run(FixedSampling(10, participations=3), range(1, 30), ledger)
    assert max_participations(asked) == 3
    assert asked[-1] == []
    assert len(asked[0]) == 10
    assert ledger.statement(DELTA).scope.endswith("3 rounds")


def test_fixed_and_poisson_draw_what_they_say() -> None:
    assert len(FixedSampling(0.25).draw_clients(1, range(40), 40)) == 10
    assert FixedSampling(50).draw_clients(1, range(40), 40) == []
    drawn = [len(PoissonSampling(0.25, seed=3).draw_clients(number, range(40), 40)) for number in range(200)]
    assert 9.0 < sum(drawn) / 200 < 11.0
    assert len(set(drawn)) > 5
    few = [PoissonSampling(0.25, 10, seed=3).draw_clients(number, range(40), 40) for number in range(200)]
    assert min(len(nodes) for nodes in few if nodes) == 10
    assert [] in few
    # Secure draws are not repeated, and leave Python's generator alone.
    state = random.getstate()
    first, second = (FixedSampling(20).draw_clients(1, range(40), 40) for _ in range(2))
    assert first != second
    assert random.getstate() == state


def test_which_draws_are_amplified() -> None:
    summed = SecureSum(corrupt_fraction=0.0, dropout_fraction=0.1)
    # Of 100 clients 90 would have answered.
    assert FixedSampling(0.1).rate(10, 100, summed) == 10 / 90
    # A corrupt client of a secure sum knows who its neighbors are.
    assert FixedSampling(0.1).rate(10, 100, SecureSum(corrupt_fraction=0.01)) == 1.0
    assert FixedSampling(0.1).rate(10, 100, SumOfCodes()) == 0.1
    assert PoissonSampling(0.5).rate(37, 100, SumOfCodes()) == 0.37
    assert FixedSampling(0.1, participations=3).rate(10, 100, summed) == 1.0
    assert CohortSampling(5).rate(10, 100, summed) == 1.0
    assert StrategySampling().rate(10, 100, summed) is None


def models_epsilon(rounds: int, per_client: int, rate: float) -> float:
    ledger = FederationLedger()
    for number in range(rounds):
        node = number // per_client
        ledger.ask(number, RELEASE, [node], View(20, sampled=1.0))
        ledger.mark_published(View(20, sampled=rate))
    return ledger.models_statement(DELTA).epsilon


def spent(count: int, view: View) -> float:
    accountant = Accountant()
    accountant.add(RELEASE.with_view(view), count)
    return accountant.statement(DELTA).epsilon


def test_models_cost_all_rounds_amplified_or_ones_own_whichever_is_less() -> None:
    assert models_epsilon(8, 1, 1.0) == spent(1, View(20))
    assert models_epsilon(8, 8, 0.05) == spent(8, View(20, sampled=0.05)) < spent(8, View(20))
    assert models_epsilon(8, 1, 0.9) == spent(1, View(20)) < spent(8, View(20, sampled=0.9))


def test_the_statement_of_models_names_what_it_trusts() -> None:
    ledger = FederationLedger()
    ledger.ask(1, RELEASE, [1, 2], View(None, sampled=1.0))
    assert ledger.has_models_view
    assert str(ledger.models_statement(DELTA).view) == "models"
    ledger.mark_published(View(20, sampled=0.05))
    statement = ledger.models_statement(DELTA)
    assert str(statement.view) == "models of 20"
    assert statement.method.startswith("sampling+")
    assert "the server is trusted" in str(statement)
    assert "probability 0.05 at most" in str(statement)
    assert "does not depend on rounds that it took part in before" in str(statement)
    # The server itself has the codes all the same.
    assert str(ledger.statement(DELTA).view) == "local"
    again = FederationLedger.from_dict(ledger.to_dict())
    assert again.models_statement(DELTA) == statement
    ledger.ask(2, RELEASE, [1, 2])
    assert not ledger.has_models_view


def test_a_target_counts_the_rounds_that_a_client_takes_part_in() -> None:
    alone = Target(epsilon=8.0, rounds=10, num_clients=50)
    bounded, whole = TARGET.plan(dimension=100, max_bits=1), alone.plan(dimension=100, max_bits=1)
    assert bounded.mean_squared_error == whole.mean_squared_error
    assert bounded.statement == whole.statement
    assert "10 of 100 rounds of 50 clients" in str(bounded)
    with pytest.raises(InvalidSpecError, match="participations: 0 is not"):
        Target(8.0, 10, 50, participations=0)
    with pytest.raises(InvalidSpecError, match=r"participations: 20 of 10 rounds; give at most 10"):
        Target(8.0, 10, 50, participations=20)
    assert Target(8.0, 10, 50, participations=10).counted_rounds == 10


def test_a_sampling_that_breaks_what_a_plan_counts_on_is_refused() -> None:
    plan = TARGET.plan(dimension=100, max_bits=1)
    CohortSampling(10).check(plan.aggregation, plan)
    FixedSampling(50, participations=10).check(plan.aggregation, plan)
    with pytest.raises(InvalidSpecError, match="in 12 of 100 rounds, but the plan assumes 10 at most"):
        CohortSampling(9).check(plan.aggregation, plan)
    with pytest.raises(InvalidSpecError, match="in 100 of 100 rounds"):
        FixedSampling(50).check(plan.aggregation, plan)
    with pytest.raises(InvalidSpecError, match="a round of 31 clients has 23 honest ones, fewer than the 40"):
        PoissonSampling(0.5, 30, participations=10).check(plan.aggregation, plan)
    PoissonSampling(0.5, 52, participations=10).check(plan.aggregation, plan)


def test_poisson_with_secure_sums_needs_a_min_number() -> None:
    PoissonSampling(0.5).check(PerClient(), None)
    with pytest.raises(InvalidSpecError, match="min_clients: missing"):
        PoissonSampling(0.5).check(SecureSum(), None)
    with pytest.raises(InvalidSpecError, match="min_clients: missing"):
        PoissonSampling(0.5).num_planned_clients(100, SecureSum())
    with pytest.raises(InvalidSpecError, match="60 are above the 50 that are drawn on average"):
        PoissonSampling(0.5, 60).num_planned_clients(100, SecureSum())
    worst = PoissonSampling(0.5, 40).num_planned_clients(100, SecureSum())
    assert SecureSum().view(worst).honest_count == min(
        SecureSum().view(number).honest_count for number in range(40, 101)
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedSampling(0.0), r"clients: 0.0 is outside \(0, 1\]"),
        (lambda: FixedSampling(0), "clients: 0"),
        (lambda: PoissonSampling(1.5), "probability: 1.5"),
        (lambda: CohortSampling(0), "rounds_apart: 0"),
        (lambda: CohortSampling(30).size(20), "20 clients are too few for 30 cohorts of 1"),
        (lambda: CohortSampling(4, 6).size(20), "20 clients are too few for 4 cohorts of 6"),
        (lambda: FixedSampling(5, participations=0), "participations: 0"),
    ],
)
def test_what_cannot_be_is_refused(make: object, words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        make()  # type: ignore[operator]
