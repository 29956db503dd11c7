"""What a run costs a record: the sum of rounded shares is counted as central DP-SGD is."""

from __future__ import annotations

import math

import pytest

import fl_privquant as pq
from fl_privquant.accounting.accountant import Accountant
from fl_privquant.accounting.records import record_statement
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import Relation, Unit, View

DIMENSION, HONEST, RATE, ROUNDS, DELTA = 7850, 9, 0.05, 300, 1e-5
DEVIATION, SPACING = 2.0, 0.03


def _release(multiplier: float = 1.0, honest: int = HONEST, rate: float = RATE) -> pq.Release:
    """Sums of ``HONEST`` shares hide a record by this multiple of its norm, rounding errors apart."""
    mechanism = pq.design("rounded_gaussian", spacing=SPACING, deviation=DEVIATION, num_clients=10)
    norm = math.sqrt(HONEST) * DEVIATION * SPACING / multiplier
    return pq.Release(mechanism, DIMENSION, View(honest), UpdateNorms(record=norm, record_rate=rate))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("multiplier", [0.7, 3.0])
def test_the_statement_is_that_of_dp_accounting_for_all_noise_that_is_added(multiplier: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution

    stated = record_statement({_release(multiplier): ROUNDS}, DELTA)

    # Rounding errors of all but one client are noise, too.
    variance = (HONEST * DEVIATION**2 + (HONEST - 1) / 12.0) / (HONEST * DEVIATION**2)
    peer = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier * math.sqrt(variance), sampling_prob=RATE
    )
    theirs = peer.self_compose(ROUNDS).get_epsilon_for_delta(DELTA)
    assert theirs <= stated.epsilon <= 1.01 * theirs
    assert (stated.unit, stated.relation) == (Unit.RECORD, Relation.ADD_REMOVE)
    # Without the rounding errors, the same noise costs more: the comparison would notice them.
    plain = privacy_loss_distribution.from_gaussian_mechanism(multiplier, sampling_prob=RATE)
    assert plain.self_compose(ROUNDS).get_epsilon_for_delta(DELTA) > stated.epsilon


def test_replacing_costs_more_than_removing_and_less_than_both_one_after_the_other() -> None:
    counts = {_release(): ROUNDS}
    remove, zero, replace = (
        record_statement(counts, DELTA, relation).epsilon
        for relation in (Relation.ADD_REMOVE, Relation.ZERO_OUT, Relation.REPLACE_ONE)
    )
    assert remove == zero < replace < 2.0 * record_statement(counts, DELTA / 1e4).epsilon


def test_the_fewer_honest_silos_the_more_a_record_costs_and_a_silo_itself_is_not_protected() -> None:
    alone, two, all_of_them = (
        record_statement({_release(honest=honest): ROUNDS}, DELTA).epsilon for honest in (1, 2, HONEST)
    )
    assert alone > two > all_of_them
    assert math.isinf(Accountant({_release(): ROUNDS}).statement(DELTA).epsilon)


def test_other_releases_protect_no_record() -> None:
    other = pq.Release(pq.design("one_bit", epsilon=1.0), 10, View(HONEST))
    assert math.isinf(record_statement({_release(): 1, other: 1}, DELTA).epsilon)
    assert record_statement({}, DELTA).epsilon == 0.0


def test_a_budget_of_a_record_ends_with_its_last_round() -> None:
    release = _release()
    spent = record_statement({release: 3}, DELTA).epsilon
    budget = pq.Budget(spent, DELTA, Unit.RECORD, Relation.ADD_REMOVE)
    accountant = Accountant({release: 2})
    accountant.check(3, release, [budget])
    accountant.add(release)
    with pytest.raises(BudgetExhaustedError, match=r"record total.*add-remove"):
        accountant.check(4, release, [budget])


def test_a_release_of_records_is_read_back_from_its_text() -> None:
    release = _release()
    again = pq.Release.from_text(release.text, {release.fingerprint: release.mechanism}, release.view)
    assert again == release
    assert again != _release(rate=0.06)


def test_a_norm_without_a_rate_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="record_rate"):
        UpdateNorms(record=1.0)
