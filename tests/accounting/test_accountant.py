"""Statements: what they say, that they grow as they must, and that they agree with what was released."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import fl_privquant as pq
from fl_privquant.accounting import (
    LOCAL,
    Accountant,
    PrivacyStatement,
    Release,
    Unit,
    UpdateNorms,
    View,
    coordinate_statement,
    round_statement,
)
from fl_privquant.accounting import accountant as accountant_module
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta
from fl_privquant.privacy_loss.additive.integer_noise import noise_sum
from fl_privquant.privacy_loss.composition.compose import NamedLoss
from fl_privquant.privacy_loss.update_bounds import NormBound, WholeUpdate

DELTA = 1e-5


def spent(mechanism: pq.Mechanism, dimension: int = 100, rounds: int = 1, **keywords: object) -> float:
    accountant = Accountant()
    accountant.add(Release(mechanism, dimension, **keywords), rounds)  # type: ignore[arg-type]
    return accountant.statement(DELTA).epsilon


def test_a_statement_is_one_line_that_says_it_all() -> None:
    release = Release(pq.design("one_bit", epsilon=1.0), 650, View.aggregate(20, corrupt=1, dropped=2))
    accountant = Accountant()
    accountant.add(release, 30)
    text = str(accountant.statement(DELTA))
    assert "\n" not in text
    for part in (
        "client total (650 coordinates, 30 rounds)",
        "aggregate view of 17",
        "ε = ",
        "δ = 1e-05",
        "one client's update replaced by any other",
        "[poisson binomial+rdp]",
        "secure aggregation",
        "corrupt and dropped ones are not counted",
    ):
        assert part in text
    single = coordinate_statement(release.mechanism)
    assert str(single).startswith(
        "coordinate release, local view, replace-one: ε = 1, δ = 0 for one client's update"
    )
    assert "local view" in str(round_statement(Release(release.mechanism, 10), DELTA))


def test_printed_figures_are_rounded_up() -> None:
    statement = PrivacyStatement(541.23001, 1e-5, Unit.ROUND)
    assert statement.figures == "ε = 541.3, δ = 1e-05"
    assert PrivacyStatement(1.0, 0.0, Unit.ROUND).figures == "ε = 1, δ = 0"
    assert "no privacy" in str(PrivacyStatement(math.inf, 0.0, Unit.TOTAL))
    with pytest.raises(InvalidSpecError):
        PrivacyStatement(-1.0, 0.0, Unit.ROUND)


@pytest.mark.parametrize("epsilon", [0.05, 0.076, 0.3, 1.0])
@pytest.mark.parametrize("rounds", [1, 2, 5, 30])
def test_counted_in_full_is_never_above_the_quick_bound(epsilon: float, rounds: int) -> None:
    """A run prints the quick bound after every round, as what was spent at most, and ends with the other."""
    accountant = Accountant()
    accountant.add(
        Release(pq.design("optm", epsilon=epsilon, bits=2), 650, norms=UpdateNorms(l2=1.0)), rounds
    )
    assert accountant.statement(DELTA).epsilon <= accountant.statement(DELTA, refine=False).epsilon


def test_monotone_in_dimension_rounds_and_epsilon() -> None:
    mechanism = pq.design("one_bit", epsilon=0.5)
    for view in (LOCAL, View.aggregate(30)):
        by_dimension = [spent(mechanism, d, view=view) for d in (1, 10, 100, 1000, 10**5)]
        by_rounds = [spent(mechanism, 50, rounds, view=view) for rounds in (1, 2, 10, 1000)]
        by_epsilon = [spent(pq.design("one_bit", epsilon=e), view=view) for e in (0.1, 0.3, 1.0, 4.0)]
        for values in (by_dimension, by_rounds, by_epsilon):
            assert values == sorted(values)
    assert spent(mechanism, view=View.aggregate(30)) < spent(mechanism)
    assert spent(mechanism, view=View.aggregate(1)) == spent(mechanism)


def test_rounds_and_coordinates_count_alike() -> None:
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    assert spent(mechanism, 300, 4) == pytest.approx(spent(mechanism, 1200, 1), rel=1e-12)


def test_different_rounds() -> None:
    one, other = pq.design("one_bit", epsilon=0.5), pq.design("optm", epsilon=0.3, bits=2)
    accountant = Accountant([Release(one, 40, View.aggregate(20))])
    accountant.add(Release(other, 60, View.aggregate(33)), 2)
    total = accountant.statement(DELTA)
    assert str(total.view) == "aggregate of 20 to 33"
    assert total.scope == "40 to 60 coordinates, 3 rounds"
    assert total.epsilon > spent(other, 60, 2, view=View.aggregate(33))
    pure = accountant.statement(0.0)
    assert pure.method == "pure"
    assert pure.epsilon == pytest.approx(40 * one.epsilon + 120 * other.epsilon)
    mixed = Accountant([Release(one, 40, View.aggregate(20)), Release(one, 40)])
    assert str(mixed.statement(DELTA).view) == "local or aggregate"
    assert Accountant().statement(DELTA).epsilon == 0.0


def test_kinds_that_are_chosen_by_earlier_outputs_are_not_covered() -> None:
    """Why the accountant assumes that they are not: the second of two releases follows from the first's loss.

    With either kind the total is within the budget. The worst of both, given what the first one showed, has
    1.8 times the delta. At delta 0 nothing is gained, as the largest losses add up.
    """
    first, *kinds = (
        Release(pq.design("one_bit", epsilon=epsilon), count)
        for epsilon, count in ((0.3, 30), (2.0, 3), (0.2, 100))
    )
    budget = max(Accountant([first, kind]).statement(3e-5).epsilon for kind in kinds)

    def losses(release: Release) -> tuple[np.ndarray, np.ndarray]:
        ones = np.arange(release.dimension + 1)
        epsilon = release.mechanism.epsilon
        likely = binom.pmf(ones, release.dimension, 1.0 / (1.0 + math.exp(-epsilon)))
        return epsilon * (2 * ones - release.dimension), likely

    def left(release: Release, epsilon: float) -> float:
        values, masses = losses(release)
        return float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - values, 0.0)), 0.0))

    shown, likely = losses(first)
    after = np.array([[left(kind, budget - loss) for kind in kinds] for loss in shown])
    assert (likely @ after).max() <= 3e-5
    assert likely @ after.max(axis=1) > 1.8 * 3e-5


def test_what_is_not_private_says_so() -> None:
    for name in ("none", "stochastic"):
        statement = round_statement(Release(pq.design(name), 10, View.aggregate(100)), DELTA)
        assert math.isinf(statement.epsilon)
        assert statement.method == "not private"
    assert "floats leak" in str(coordinate_statement(pq.design("gaussian", epsilon=1.0)))


def test_unknown_mechanisms_are_counted_by_the_worst_distribution() -> None:
    snapping = pq.design("snapping", epsilon=0.5)
    found = round_statement(Release(snapping, 200), DELTA)
    assert found.method == "worst distribution+pld"
    assert found.epsilon == pytest.approx(
        spent(pq.design("one_bit", epsilon=snapping.epsilon), 200), rel=1e-4
    )


def test_the_gaussian_by_its_norm_is_exact() -> None:
    mechanism = pq.design("gaussian", epsilon=1.0)
    statement = round_statement(Release(mechanism, 10_000, norms=UpdateNorms(l2=2.0)), DELTA)
    assert statement.method == "l2 gaussian+exact"
    assert gaussian_delta(4.0 / mechanism.scale, statement.epsilon) == pytest.approx(DELTA, rel=1e-3)
    assert statement.epsilon < spent(mechanism, 10_000)
    assert "clipped to the stated norm" in str(statement)


@pytest.mark.parametrize("name", ["discrete_gaussian", "skellam"])
def test_integer_noise_by_its_norm(name: str) -> None:
    mechanism = pq.design(name, epsilon=1.0, levels=256, num_clients=100)
    release = Release(mechanism, 100, View.aggregate(100), norms=UpdateNorms(l2=2.0))
    found = round_statement(release, DELTA)
    assert found.method.startswith("l2 ")
    # On a fine lattice rounding costs little: next to a Gaussian with as much noise, in the sum of 100.
    variance = 100 * float(mechanism.noise.variance) * mechanism.step**2
    assert gaussian_delta(4.0 / math.sqrt(variance), found.epsilon) <= DELTA
    assert gaussian_delta(4.0 / math.sqrt(variance), 0.75 * found.epsilon) > DELTA
    bounds = [
        round_statement(Release(mechanism, d, View.aggregate(100), norms=UpdateNorms(l2=2.0)), DELTA).epsilon
        for d in (100, 1000, 10_000)
    ]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("name", ["discrete_gaussian", "skellam"])
@pytest.mark.parametrize("clients", [1, 3])
def test_the_bound_holds_for_the_noise_that_is_added(name: str, clients: int) -> None:
    """A shift of one coordinate by the whole lattice, and its divergence by the sum itself."""
    mechanism = pq.design(name, epsilon=3.0, levels=4, num_clients=clients)
    distribution = noise_sum(mechanism.noise, clients)
    first, second = distribution.values[mechanism.max_shift :], distribution.values[: -mechanism.max_shift]
    # The norm of a change by the whole lattice: 2 in units of the clip, half of it for each update.
    bound = mechanism.update_losses(WholeUpdate(UpdateNorms(l2=1.0), 1, View(clients)))[0]
    for order in (1.5, 2.0, 4.0, 10.0):
        divergence = math.log(float((first**order * second ** (1.0 - order)).sum())) / (order - 1.0)
        assert bound.loss.log_moment(order - 1.0) / (order - 1.0) >= divergence


@pytest.mark.parametrize("delta", [1e-5, 1e-7])
@pytest.mark.parametrize("norm", [0.003, 0.01, 0.05])
@pytest.mark.parametrize(("epsilon", "levels"), [(8.0, 2), (16.0, 2), (16.0, 4)])
def test_a_norm_far_below_a_step_of_the_lattice_is_charged(
    epsilon: float, levels: int, norm: float, delta: float
) -> None:
    """Against the exact distribution of one coordinate at a lattice point, and of one a little further."""
    mechanism = pq.design("discrete_gaussian", epsilon=epsilon, levels=levels)
    stated = round_statement(Release(mechanism, 1, norms=UpdateNorms(l2=norm)), delta).epsilon
    exact = mechanism.noise.pmf(np.arange(-400, 401))
    share = 2.0 * norm / mechanism.step
    moved = (1.0 - share) * exact + share * np.roll(exact, 1)
    assert np.maximum(moved - math.exp(stated) * exact, 0.0).sum() <= delta * (1.0 + 1e-9)


def test_rounding_to_a_coarse_lattice_is_charged() -> None:
    """Inputs 1e-3 steps apart are rounded a whole step apart with probability 1e-3."""
    mechanism = pq.design("discrete_gaussian", epsilon=1.0, levels=4)
    bound = mechanism.update_losses(WholeUpdate(UpdateNorms(l2=1e-3), 1))[0]
    distance = 2e-3 / mechanism.step
    exact = mechanism.noise.pmf(np.arange(-200, 201))
    moved = (1.0 - distance) * exact + distance * np.roll(exact, 1)
    divergence = math.log(float((moved**2 / exact).sum()))
    assert bound.loss.log_moment(1.0) >= divergence


def test_continuous_distributions_and_metrics_by_their_norm() -> None:
    smooth = pq.design("one_bit", epsilon=0.5)
    found = round_statement(Release(smooth, 10_000, norms=UpdateNorms(l2=0.5)), DELTA)
    assert found.method == "l2 renyi+rdp"
    assert found.epsilon < 0.2 * spent(smooth, 10_000)
    jumping = pq.design("optm", epsilon=1.0, family="independent", objective="mae", bins=(-3, -0.5, 0.5, 3))
    assert jumping.update_losses(WholeUpdate(UpdateNorms(l2=0.5), 100)) == []


def test_stating_again_each_round_computes_no_loss_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    calls, compute = [], type(mechanism).loss

    def count_calls(self: Any, *arguments: Any) -> NamedLoss:
        calls.append(arguments)
        return compute(self, *arguments)

    monkeypatch.setattr(type(mechanism), "loss", count_calls)
    accountant = Accountant()
    accountant.add(Release(mechanism, 650, View.aggregate(20)))
    first = accountant.statement(DELTA)
    before = len(calls)
    for _ in range(10):
        accountant.add(Release(mechanism, 650, View.aggregate(20)))
        last = accountant.statement(DELTA)
    assert len(calls) == before
    assert last.epsilon > first.epsilon


def test_views() -> None:
    assert View.aggregate(20, corrupt=3, dropped=2) == View(15)
    assert LOCAL.is_local
    assert View(1).is_local
    for arguments in ((5, 5), (5, -1), (0, 0)):
        with pytest.raises(InvalidSpecError, match=r"corrupt, dropped|view"):
            View.aggregate(*arguments)
    with pytest.raises(InvalidSpecError, match="dimension"):
        Release(pq.design("one_bit", epsilon=1.0), 0)
    with pytest.raises(InvalidSpecError, match="count"):
        Accountant().add(Release(pq.design("one_bit", epsilon=1.0), 1), 0)


def test_updates_of_bounded_l1_norm_cost_at_max_the_metric_figure() -> None:
    """All pairs of updates on a grid of the L1 ball, three coordinates, all outputs: by enumeration."""
    mechanism = pq.design("optm", epsilon=2.0, levels=3, metric="l1")
    radius, grid = 0.75, np.linspace(-0.75, 0.75, 7)
    points = [x for x in itertools.product(grid, repeat=3) if sum(map(abs, x)) <= radius + 1e-12]
    logs = np.log(mechanism.pmf(grid))
    place = {float(value): at for at, value in enumerate(grid)}
    # (points, outputs of all three coordinates)
    joint = np.array(
        [
            (logs[place[x]][:, None, None] + logs[place[y]][:, None] + logs[place[z]]).ravel()
            for x, y, z in points
        ]
    )
    worst = max(float(np.abs(joint - each).max()) for each in joint)
    stated = round_statement(Release(mechanism, 3, norms=UpdateNorms(l1=radius)), 0.0)
    assert stated.method == "l1 metric+exact"
    assert worst <= stated.epsilon <= 2.0 * radius * mechanism.metric_epsilon * 1.001
    # The figure is nearly reached, and far below three times that of a coordinate.
    assert worst > 0.8 * stated.epsilon
    assert stated.epsilon < 0.5 * 3.0 * mechanism.epsilon
    # In a thousand dimensions as well; and an L2 norm bounds an L1 norm.
    many = round_statement(Release(mechanism, 1000, norms=UpdateNorms(l1=radius)), 0.0)
    assert many.epsilon == pytest.approx(stated.epsilon, rel=1e-4)
    by_l2 = round_statement(Release(mechanism, 4, norms=UpdateNorms(l2=radius / 2.0)), 0.0)
    assert by_l2.epsilon == pytest.approx(stated.epsilon, rel=1e-4)


def test_a_metric_on_a_grid_is_not_counted_by() -> None:
    """Inputs between knots break its bound, so an accountant that used it would state too little."""
    mechanism = pq.design("optm", epsilon=2.0, levels=4, metric="l2-grid", num_knots=5)
    near, other = mechanism.pmf([0.2, 0.21])
    claimed = mechanism.metric_epsilon * 0.01**2
    assert float(np.abs(np.log(near / other)).max()) > 2.0 * claimed
    for norms in (UpdateNorms(l1=0.005), UpdateNorms(l2=0.005)):
        assert all("metric" not in each.name for each in mechanism.update_losses(WholeUpdate(norms, 1)))
        stated = round_statement(Release(mechanism, 1, norms=norms), 0.0)
        assert stated.epsilon >= float(np.abs(np.log(near / other)).max())


def test_the_best_of_several_bounds_is_stated_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = pq.design("one_bit", epsilon=1.0)
    local = Release(mechanism, 100, norms=UpdateNorms(l2=1.0))
    assert round_statement(local, DELTA).method == "l2 renyi+rdp"
    known = TableMechanism.update_losses

    def with_another(self: TableMechanism, update: WholeUpdate) -> list[NamedLoss]:
        mine = NamedLoss(NormBound(lambda order: 0.01 * order / update.num_honest), "mine")
        return [*known(self, update), mine]

    monkeypatch.setattr(accountant_module, "_update_losses", accountant_module._update_losses.__wrapped__)
    monkeypatch.setattr(TableMechanism, "update_losses", with_another)
    found = round_statement(local, DELTA)
    assert found.method == "mine+rdp"
    # Below the usual conversion of concentrated privacy, with rho = 0.01, but not by much.
    assert 0.7 < found.epsilon / (0.01 + 2.0 * math.sqrt(0.01 * math.log(1.0 / DELTA))) < 1.0
    in_sum = round_statement(Release(mechanism, 100, View.aggregate(50), norms=UpdateNorms(l2=1.0)), DELTA)
    assert in_sum.method == "mine+rdp"
    assert in_sum.epsilon < found.epsilon
