"""Every mechanism answers for replace-one and for zero-out, and the answers fit each other."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.accounting import Accountant, PrivacyStatement, Relation, Release, UpdateNorms, View
from fl_privquant.accounting.ledgers.server_ledger import FederationLedger
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon, gaussian_separation
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.sums.blanket import blanket_loss
from fl_privquant.privacy_loss.tables.dominating_pair import zero_out_loss
from fl_privquant.statement import StatedView, Unit, ViewKind
from tests.typical import typical

DELTA = 1e-5
ZERO_OUT, REPLACE_ONE = Relation.ZERO_OUT, Relation.REPLACE_ONE


@pytest.mark.parametrize(("replace_one", "zero_out"), [(1.0, 0.47), (4.0, 1.83), (8.0, 3.55), (10.0, 4.38)])
def test_gaussian_sums_have_the_figures_of_the_field(replace_one: float, zero_out: float) -> None:
    """A rounded Gaussian whose sum costs so much by replace-one costs so much by zero-out, to 1 %."""
    mechanism = pq.design(
        "rounded_gaussian",
        deviation=4.0,
        num_clients=100,
        # In units of the clip: the L2 norm is 1, so a sum moves by 2 under replace-one.
        spacing=2.0 / (gaussian_separation(replace_one, DELTA) * 4.0 * math.sqrt(100)),
    )
    release = Release(mechanism, 100, View(100), UpdateNorms(l2=1.0))
    accountant = Accountant([release])
    assert accountant.statement(DELTA).epsilon == pytest.approx(replace_one, rel=0.01)
    assert accountant.statement(DELTA, relation=ZERO_OUT).epsilon == pytest.approx(zero_out, rel=0.01)


PRIVATE = [name for name in pq.available_mechanisms() if math.isfinite(typical(name).epsilon)]
SUMMED = [name for name in PRIVATE if typical(name).summable]


@pytest.mark.parametrize(
    ("name", "view"),
    [
        *((name, View()) for name in PRIVATE),
        *((name, View(20)) for name in SUMMED),
        *((name, View(20, sampled=0.2)) for name in SUMMED),
        *((name, View(sampled=0.2)) for name in PRIVATE),
    ],
)
def test_zero_out_is_between_half_of_replace_one_and_replace_one(name: str, view: View) -> None:
    mechanism = typical(name, epsilon=1.0)
    for norms in (UpdateNorms(), UpdateNorms(l2=1.0)):
        accountant = Accountant({Release(mechanism, 16, view, norms): 3})
        zero_out = accountant.statement(DELTA, relation=ZERO_OUT)
        replace_one = accountant.statement(DELTA)
        assert (zero_out.relation, replace_one.relation) == (ZERO_OUT, REPLACE_ONE)
        # A little more where two numerical bounds of one pair differ in their last digits.
        assert 0.0 < zero_out.epsilon <= replace_one.epsilon * (1.0 + 1e-6)
        # Group privacy, by way of zero; 2 % are for bounds by Rényi divergences, which only approximate it.
        delta = DELTA * (1.0 + math.exp(zero_out.epsilon))
        if delta < 1.0:
            assert accountant.statement(delta).epsilon <= 2.0 * zero_out.epsilon * 1.02


def curve_violations(loss: object, pairs: list[tuple[np.ndarray, np.ndarray]]) -> int:
    """In how many pairs, at some epsilon, the exact delta is above that of the loss."""
    grid = np.linspace(0.0, 3.0, 13)
    allowed = np.array([loss.delta(float(epsilon)) for epsilon in grid])  # type: ignore[attr-defined]
    violated = 0
    for first, second in pairs:
        exact = np.maximum(first - np.exp(grid)[:, None] * second, 0.0).sum(axis=1)
        violated += bool((exact > allowed * (1.0 + 1e-9) + 1e-15).any())
    return violated


def sums_of(mechanism: pq.Mechanism, inputs: np.ndarray) -> np.ndarray:
    """The exact distribution of the sum of the codes of these inputs."""
    total = np.ones(1)
    for row in mechanism.pmf(inputs):  # type: ignore[attr-defined]
        spread = np.zeros(int(mechanism.codes.max()) + 1)  # type: ignore[attr-defined]
        spread[mechanism.codes] = row  # type: ignore[attr-defined]
        total = np.convolve(total, spread)
    return total


# Mechanisms with a short list of codes, whose sums have exact distributions.
LISTED = [name for name in PRIVATE if hasattr(typical(name), "codes")]


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("relation", [REPLACE_ONE, ZERO_OUT], ids=str)
def test_no_small_sum_exceeds_its_bound(name: str, relation: Relation) -> None:
    """Exact curves of pairs of sums of one to four clients: 1200 for each mechanism and relation.

    There are 200 where codes are far apart, as sums then take many values; 11 200 for each relation.
    """
    mechanism = typical(name, epsilon=1.0)
    count = 150 if mechanism.codes.max() < 100 else 25
    rng = np.random.default_rng(35)
    for clients in (1, 2, 3, 4):
        pairs = []
        for _ in range(count):
            others = rng.choice([-1.0, 1.0, 0.0, rng.uniform(-1, 1)], size=clients - 1)
            one = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)])
            other = 0.0 if relation is ZERO_OUT else rng.choice([-1.0, 1.0, rng.uniform(-1, 1)])
            pair = [sums_of(mechanism, np.append(others, x)) for x in (one, other)]
            pairs += [(pair[0], pair[1]), (pair[1], pair[0])]
        named = mechanism.loss(View(clients), relation)
        # A bound for replace-one is one for zero-out, too, and says what it is.
        assert named.relation is relation or (name, named.relation) == ("snapping", REPLACE_ONE)
        assert len(pairs) == 2 * count
        assert curve_violations(named.loss, pairs) == 0


def test_the_brute_force_notices_a_bound_that_is_too_small() -> None:
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    pairs = [(sums_of(mechanism, np.array([x])), sums_of(mechanism, np.array([-x]))) for x in (-1.0, 1.0)]
    assert curve_violations(mechanism.loss(View(), ZERO_OUT).loss, pairs) == 2


@pytest.mark.parametrize("name", ["discrete_gaussian", "skellam", "discrete_laplace", "rounded_gaussian"])
@pytest.mark.parametrize("relation", [REPLACE_ONE, ZERO_OUT], ids=str)
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_integer_noise_stays_within_its_bound(name: str, relation: Relation, clients: int) -> None:
    """The exact curves of all pairs of 21 inputs, or of each with 0, added to what others send."""
    mechanism = typical(name, epsilon=1.0, levels=16)
    rows = mechanism.pmf(np.linspace(-1.0, 1.0, 21))
    rng = np.random.default_rng(35)
    for other in rng.choice(21, size=clients - 1):
        rows = np.array([add_modulo(row, rows[other]) for row in rows])
    against = [10] if relation is ZERO_OUT else range(21)
    pairs = [(rows[i], rows[j]) for i, j in itertools.product(range(21), against) if i != j]
    pairs += [(second, first) for first, second in pairs]
    assert curve_violations(mechanism.loss(View(clients), relation).loss, pairs) == 0


def add_modulo(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The distribution of the sum of two codes modulo their number, as a secure sum opens it."""
    total = np.convolve(first, second)
    return np.asarray(total[: first.size] + np.append(total[first.size :], 0.0))


def test_zero_out_of_one_bit_is_known() -> None:
    """Randomized response of a fair coin, for 0, against one of probability p."""
    table = pq.design("one_bit", epsilon=1.0).table  # type: ignore[attr-defined]
    p = math.e / (1.0 + math.e)
    assert zero_out_loss(table).max_loss == pytest.approx(math.log(0.5 / (1.0 - p)), rel=1e-6)
    part = Part(blanket_loss(table, 1, ZERO_OUT), 1)
    assert compose_epsilon([part], 0.0).epsilon == pytest.approx(math.log(0.5 / (1.0 - p)), rel=1e-6)


def test_a_bound_that_is_only_known_for_replace_one_says_so() -> None:
    release = Release(typical("privunit", epsilon=1.0), 16)
    statement = Accountant([release]).statement(DELTA, relation=ZERO_OUT)
    assert statement.method == "pure" or "replace-one bound" in statement.method
    assert statement.epsilon == pytest.approx(Accountant([release]).statement(DELTA).epsilon)


def test_add_remove_needs_a_view_that_hides_who_takes_part() -> None:
    mechanism = pq.design("one_bit", epsilon=0.1)
    for view in (View(), View(20), View(20, sampled=1.0)):
        with pytest.raises(InvalidSpecError, match=r"add-remove' needs a view that hides who takes part"):
            Release(mechanism, 10, view, relation=Relation.ADD_REMOVE)
    hidden = Accountant([Release(mechanism, 10, View(20, sampled=0.1), relation=Relation.ADD_REMOVE)])
    statement = hidden.statement(DELTA)
    assert statement.relation is Relation.ADD_REMOVE
    assert any("with or without the client" in assumption for assumption in statement.assumptions)
    assert statement.epsilon == hidden.statement(DELTA, relation=REPLACE_ONE).epsilon


@pytest.mark.parametrize("view", ["local", "aggregate of 20", "local or aggregate"])
@pytest.mark.parametrize("unit", [Unit.COORDINATE, Unit.ROUND, Unit.TOTAL])
def test_no_statement_says_add_remove_of_clients_who_are_seen(unit: Unit, view: str) -> None:
    """Neither one that is made, nor one that is loaded after its relation was changed in its file."""
    made = PrivacyStatement(1.0, DELTA, unit, StatedView.from_text(view), ZERO_OUT)
    with pytest.raises(InvalidSpecError, match=r"add-remove' needs a view that hides who takes part"):
        dataclasses.replace(made, relation=Relation.ADD_REMOVE)
    changed = {**json.loads(json.dumps(made.to_dict())), "relation": "add-remove"}
    with pytest.raises(InvalidSpecError, match=r"add-remove' needs a view that hides who takes part"):
        PrivacyStatement.from_dict(changed)
    # Of records it may be said, and of clients where nobody sees who takes part.
    assert dataclasses.replace(made, unit=Unit.RECORD, relation=Relation.ADD_REMOVE)
    assert dataclasses.replace(made, view=StatedView(ViewKind.CENTRAL), relation=Relation.ADD_REMOVE)


@pytest.mark.parametrize("relation", ["", "both", "Zero-out", None])
def test_a_statement_with_another_relation_or_none_is_not_loaded(relation: str | None) -> None:
    content = PrivacyStatement(1.0, DELTA, Unit.TOTAL).to_dict()
    content["relation"] = relation
    with pytest.raises(ValueError, match="is not a valid Relation"):
        PrivacyStatement.from_dict(content)
    del content["relation"]
    with pytest.raises(KeyError, match="relation"):
        PrivacyStatement.from_dict(content)


def test_a_budget_of_clients_who_are_seen_is_not_for_add_remove() -> None:
    with pytest.raises(InvalidSpecError, match=r"add-remove' would hide whether a client takes part"):
        pq.Budget(9.0, DELTA, relation=Relation.ADD_REMOVE)
    assert pq.Budget(9.0, DELTA, Unit.RECORD, Relation.ADD_REMOVE)
    ledger = FederationLedger()
    ledger.ask(1, Release(pq.design("gaussian", epsilon=1.0), 1), [7])
    for in_sum in (False, True):
        with pytest.raises(InvalidSpecError, match=r"add-remove' needs a view that hides who takes part"):
            ledger.statement(DELTA, in_sum, relation=Relation.ADD_REMOVE)


def test_releases_of_two_relations_have_no_common_statement() -> None:
    release = Release(pq.design("one_bit", epsilon=1.0), 10)
    accountant = Accountant([release, release.with_relation(ZERO_OUT)])
    with pytest.raises(InvalidSpecError, match="replace-one and zero-out' are mixed"):
        accountant.statement(DELTA)
    assert accountant.statement(DELTA, relation=ZERO_OUT).relation is ZERO_OUT


@pytest.mark.parametrize("mechanism", ["rounded_gaussian", "optm", "skellam"])
def test_a_target_is_met_in_its_own_relation_and_used_up(mechanism: str) -> None:
    target = pq.Target(epsilon=4.0, rounds=5, num_clients=100, relation="zero-out")
    plan = target.plan(dimension=1000, mechanism=mechanism)
    assert plan.statement.relation is plan.budget.relation is ZERO_OUT
    assert 0.97 * 4.0 < plan.statement.epsilon <= 4.0
    assert plan.other_statement.relation is REPLACE_ONE
    assert plan.other_statement.epsilon == pytest.approx(9.1, rel=0.05)
    first, _, second = str(plan).partition("zero-out")
    assert "replace-one" not in first
    assert plan.other_statement.brief in second


def test_a_target_shows_what_the_field_counts() -> None:
    plan = pq.Target(epsilon=4.0, rounds=5, num_clients=100).plan(dimension=1000)
    assert plan.statement.relation is REPLACE_ONE
    assert plan.other_statement.epsilon == pytest.approx(1.83, rel=0.02)
    assert f"{plan.other_statement.brief}, as most libraries" in str(plan)


def test_a_target_refuses_a_relation_that_it_cannot_keep() -> None:
    for relation, reason in (("add-remove", "the server knows it"), ("zero", "is not a relation")):
        with pytest.raises(InvalidSpecError, match=reason):
            pq.Target(epsilon=4.0, rounds=5, num_clients=100, relation=relation)


@pytest.mark.parametrize("relation", Relation)
def test_a_target_of_a_record_may_be_for_any_relation_and_is_used_up(relation: Relation) -> None:
    target = pq.Target(
        epsilon=2.0,
        rounds=10,
        num_clients=5,
        unit="record",
        records=455,
        sampling_rate=0.5,
        relation=str(relation),
    )
    plan = target.plan(dimension=31)
    assert plan.statement.relation is plan.budget.relation is relation
    assert 1.99 < plan.statement.epsilon <= 2.0
    other = plan.other_statement
    assert other.relation is (Relation.ADD_REMOVE if relation is REPLACE_ONE else REPLACE_ONE)
    assert (other.epsilon < 1.1) if relation is REPLACE_ONE else (3.5 < other.epsilon < 4.0)
    assert f"A record spends {plan.statement.brief}; if it were" in str(plan)
    assert f"{other.brief}." in str(plan)


def test_a_budget_is_kept_in_its_own_relation() -> None:
    release = Release(pq.design("gaussian", epsilon=1.0), 1)
    spent = Accountant([release]).statement(1e-6, relation=ZERO_OUT).epsilon
    assert spent < 0.6
    Accountant().check(1, release, [pq.Budget(0.6, 1e-6, relation=ZERO_OUT)])
    with pytest.raises(pq.BudgetExhaustedError, match="replace-one"):
        Accountant().check(1, release, [pq.Budget(0.6, 1e-6)])
    with pytest.raises(pq.BudgetExhaustedError, match="zero-out"):
        Accountant().check(1, release, [pq.Budget(0.9 * spent, 1e-6, relation=ZERO_OUT)])


def test_the_conversion_of_gaussian_epsilons_goes_both_ways() -> None:
    for zero_out, replace_one in ((4.0, 9.1), (8.0, 19.1), (10.0, 24.4)):
        separation = gaussian_separation(zero_out, DELTA)
        assert gaussian_epsilon(2.0 * separation, DELTA) == pytest.approx(replace_one, rel=0.01)
