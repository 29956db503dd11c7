"""The server's ledger: every client counted, restarts charged to all, budgets that stop in time."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Budget, FederationLedger, Release, View
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.privacy_loss.update_bounds import UpdateNorms

DELTA = 1e-5
ONE, OTHER = pq.design("one_bit", epsilon=0.5), pq.design("one_bit", epsilon=1.0)


def release(mechanism: pq.Mechanism, dimension: int = 40, l2: float | None = None) -> Release:
    return Release(mechanism, dimension, norms=UpdateNorms(l2=l2))


def make_ledger(rounds: list[tuple[pq.Mechanism, list[int], int | None]]) -> FederationLedger:
    ledger = FederationLedger()
    for number, (mechanism, nodes, honest) in enumerate(rounds, start=1):
        ledger.ask(number, release(mechanism), nodes)
        if honest is not None:
            ledger.mark_summed(honest)
    return ledger


def spent(*events: tuple[pq.Mechanism, int | None]) -> float:
    return Accountant([Release(mech, 40, View(honest)) for mech, honest in events]).statement(DELTA).epsilon


def test_the_client_that_was_asked_max_is_stated() -> None:
    ledger = make_ledger([(ONE, [1, 2, 3], None), (ONE, [2, 3], None), (ONE, [3, 4], None)])
    assert ledger.statement(DELTA).epsilon == spent(*[(ONE, None)] * 3)
    assert [ledger.count(node, release(ONE)) for node in (1, 2, 3, 4, 5)] == [1, 2, 3, 1, 0]
    assert ledger.statement(DELTA).scope == "40 coordinates, 3 rounds"
    assert FederationLedger().statement(DELTA).epsilon == 0.0


def test_neither_of_two_histories_is_forgotten() -> None:
    """Client 1 was asked often for little, client 2 once for much: each may be the worse."""
    for often in (1, 2, 3, 8):
        ledger = make_ledger([*[(ONE, [1], None)] * often, (OTHER, [2], None)])
        assert ledger.statement(DELTA).epsilon == max(spent(*[(ONE, None)] * often), spent((OTHER, None)))


def test_many_histories_are_bounded_by_one() -> None:
    kinds = [pq.design("one_bit", epsilon=0.2 + 0.1 * i) for i in range(6)]
    rounds: list[tuple[pq.Mechanism, list[int], int | None]] = []
    for node, pair in enumerate(itertools.combinations(kinds, 2)):
        rounds += [(kind, [node], None) for kind in pair]
    ledger = make_ledger(rounds)
    # No client has more than the two most expensive kinds; the bound has one of each.
    assert ledger.statement(DELTA).epsilon >= spent((kinds[-1], None), (kinds[-2], None))
    assert ledger.statement(DELTA).epsilon <= spent(*[(kind, None) for kind in kinds]) * (1.0 + 1e-12)


def test_sums_are_counted_with_their_own_numbers() -> None:
    ledger = make_ledger([(ONE, [1, 2], 30), (ONE, [1, 2], 20)])
    assert ledger.statement(DELTA, in_sum=True).epsilon == spent((ONE, 30), (ONE, 20))
    assert str(ledger.statement(DELTA, in_sum=True).view) == "aggregate of 20 to 30"
    assert ledger.statement(DELTA).epsilon == spent((ONE, None), (ONE, None))
    assert ledger.last_view == View(20)
    # Until it is known that only a sum was seen, a round is local in both views.
    ledger.ask(3, release(ONE), [1])
    assert ledger.statement(DELTA, in_sum=True).epsilon > 2 * spent((ONE, 30), (ONE, 20))
    ledger.cancel()
    assert ledger.statement(DELTA, in_sum=True).epsilon == spent((ONE, 30), (ONE, 20))
    assert len(ledger) == 2


def test_sums_of_many_sizes_count_as_the_smallest() -> None:
    rounds = [(ONE, [node], honest) for honest in range(20, 26) for node in (honest, 99)]
    ledger = make_ledger([*rounds, *[(ONE, [node], 40 + node) for node in range(6)]])
    exact = spent(*[(ONE, honest) for honest in range(20, 26)])
    assert exact <= ledger.statement(DELTA, in_sum=True).epsilon <= spent(*[(ONE, 20)] * 6)


def test_a_checkpoint_does_not_make_sums_smaller() -> None:
    """What a round may at least come to is noted before it is known, and a checkpoint may be written then."""

    def ledger(checkpoints: bool) -> FederationLedger:
        made = FederationLedger()
        for number in range(12):
            made.ask(number, release(ONE), range(5 * number, 5 * number + 20))
            made.mark_summed(20)
            if checkpoints:
                made.to_dict()
            made.mark_summed(80 + number % 6)
        return made

    assert ledger(True).statement(DELTA, in_sum=True) == ledger(False).statement(DELTA, in_sum=True)


def test_a_restart_charges_everybody() -> None:
    before = make_ledger([(ONE, [1, 2], 30), (ONE, [2], 20), (OTHER, [1], None)])
    after = FederationLedger.from_dict(before.to_dict())
    assert after.releases == before.releases
    # Whoever client 7 was before, it has spent at most this.
    assert [after.count(7, release(kind)) for kind in (ONE, OTHER)] == [2, 1]
    # But nobody was asked for more than before.
    assert after.statement(DELTA) == before.statement(DELTA)
    after.ask(4, release(ONE), [7])
    after.mark_summed(25)
    assert after.statement(DELTA, in_sum=True).epsilon == spent(
        (ONE, 30), (ONE, 20), (OTHER, None), (ONE, 25)
    )
    again = FederationLedger.from_dict(after.to_dict())
    assert again.statement(DELTA) == after.statement(DELTA)


def test_names_that_were_met_before_a_restart_are_no_strangers() -> None:
    ledger = FederationLedger()
    ledger.register_clients([1, 2, 3])
    ledger.ask(1, release(ONE), [1, 2])
    for _ in range(2):
        ledger = FederationLedger.from_dict(ledger.to_dict())
        # Client 9 joins after the restart, or is client 1 with another name.
        ledger.register_clients([9])
        assert [ledger.participation(node) for node in (1, 3, 9)] == [(1, 1), (0, None), (1, 1)]
        assert [ledger.count(node, release(ONE)) for node in (1, 3, 9)] == [1, 0, 1]
    ledger.check(2, release(ONE), [3], Budget(spent((ONE, None)), DELTA))
    with pytest.raises(BudgetExhaustedError):
        ledger.check(2, release(ONE), [9], Budget(spent((ONE, None)), DELTA))


def test_many_clients_of_two_rounds_each_are_not_stated_as_one_of_six() -> None:
    """Six histories that none of the others contains were merged to one, of two rounds of each kind."""
    kinds = [pq.design("one_bit", epsilon=0.5 - 0.01 * i) for i in range(3)]
    pairs = itertools.combinations_with_replacement(kinds, 2)
    rounds = [(kind, [node], 20) for node, pair in enumerate(pairs, start=1) for kind in pair]
    ledger = make_ledger(rounds)
    assert len({ledger.count(1, release(kind)) for kind in kinds}) == 2
    most = spent(*[(kinds[0], 20)] * 2)
    for one in (ledger, FederationLedger.from_dict(ledger.to_dict())):
        assert one.statement(DELTA, in_sum=True).epsilon == most
    # The seventh client, and none of these, may be asked for one more within what two rounds cost.
    view = View(20)
    ledger.check(13, release(kinds[0]).with_view(view), [7], Budget(most, DELTA))
    with pytest.raises(BudgetExhaustedError) as raised:
        ledger.check(13, release(kinds[2]).with_view(view), [6, 7], Budget(most, DELTA))
    # What was spent is the run's total, and not that of those who would be asked.
    assert raised.value.statement == ledger.statement(DELTA, in_sum=True)


_REFUSED = """
import fl_privquant as pq
from fl_privquant.accounting import Budget, FederationLedger, Release

kinds = [pq.design("one_bit", epsilon=0.5 - 0.05 * i) for i in range(4)]
ledger = FederationLedger()
for node, kind in enumerate(kinds):
    ledger.ask(node + 1, Release(kind, 40), [node])
try:
    ledger.check(5, Release(kinds[0], 40), range(4), Budget(1.0, 1e-5))
except pq.BudgetExhaustedError as refused:
    print(refused)
"""


def test_a_refusal_is_the_same_in_every_process() -> None:
    """Four clients would exceed the budget: which one is named must not depend on how texts are hashed."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _REFUSED],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    refusals = {process.communicate()[0] for process in started}
    assert len(refusals) == 1
    assert refusals.pop().startswith("round 5: ")


@pytest.mark.parametrize("honest", [None, 20])
def test_a_budget_stops_before_it_is_exceeded(honest: int | None) -> None:
    view = View(honest)
    budget = Budget(spent(*[(ONE, honest)] * 3), DELTA)
    ledger = make_ledger([(ONE, [1, 2], honest)] * 3)
    # Client 3 has spent nothing yet.
    ledger.check(4, release(ONE).with_view(view), [3], budget)
    with pytest.raises(BudgetExhaustedError, match=r"round 4: .* Spent: client total") as raised:
        ledger.check(4, release(ONE).with_view(view), [2, 3], budget)
    assert raised.value.statement.epsilon == budget.epsilon


def test_a_norm_reaches_the_accountant() -> None:
    ledger = FederationLedger()
    ledger.ask(1, release(ONE, 10_000, l2=0.5), [1])
    assert ledger.statement(DELTA).method == "l2 renyi+rdp"
    whole = Release(ONE, 7, norms=UpdateNorms(l2=0.5, l1=0.1))
    assert Release.from_text(whole.text, {whole.fingerprint: ONE}) == whole


def test_a_ledger_without_its_mechanism_says_so() -> None:
    content = make_ledger([(ONE, [1], None)]).to_dict()
    content["mechanisms"] = {}
    with pytest.raises(InvalidSpecError, match="not a release of a known mechanism"):
        FederationLedger.from_dict(content)


def last_key(ledger: FederationLedger) -> object:
    assert ledger.last_release is not None
    return ledger.last_release


def test_the_last_release_and_its_view_survive_a_restart() -> None:
    """A ledger that is not empty states what its last round and all of them cost, with no round open."""
    before = make_ledger([(ONE, [1, 2], None), (OTHER, [2], 5)])
    after = FederationLedger.from_dict(before.to_dict())
    assert str(after.last_view) == str(before.last_view) == "aggregate of 5"
    assert last_key(after) == last_key(before)
    for in_sum in (False, True):
        assert after.last_statement(DELTA, in_sum) == before.last_statement(DELTA, in_sum)
        assert after.last_statement(DELTA, in_sum).epsilon > 0.0
        assert after.statement(DELTA, in_sum).epsilon >= after.last_statement(DELTA, in_sum).epsilon


def test_a_canceled_release_is_not_the_last() -> None:
    ledger = make_ledger([(ONE, [1], None), (OTHER, [1], 5)])
    ledger.cancel()
    assert ledger.last_view.is_local
    assert last_key(ledger) == last_key(make_ledger([(ONE, [1], None)]))
    nothing = FederationLedger.from_dict(FederationLedger().to_dict())
    assert nothing.last_release is None
    with pytest.raises(InvalidSpecError, match="no release was asked for yet"):
        nothing.last_statement(DELTA)
