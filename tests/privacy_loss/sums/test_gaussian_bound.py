"""The certificate of the secure sum against brute force: all inputs of the others, pairs and thresholds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, BiasedTable, CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.privacy_loss.additive.gaussian import gaussian_delta, gaussian_separation
from fl_privquant.privacy_loss.sums.gaussian_bound import (
    UpdateBound,
    _normal_score,
    certify_sum,
)
from tests.exact import sums_of

RATE = 1e-9


def table_of(rows: np.ndarray) -> CertifiedTable:
    """The table whose rows, of increasing mean code, are at equal steps of the code's mean from -1 to 1."""
    weights = np.rint(rows * TOTAL_WEIGHT).astype(np.int64)
    weights[:, 0] += TOTAL_WEIGHT - weights.sum(axis=1)
    codes = np.arange(rows.shape[1])
    means = weights @ codes / TOTAL_WEIGHT
    step = 2.0 / (means[-1] - means[0])
    book = Codebook(codes, step, -1.0 - step * means[0])
    pieces = np.arange(len(rows) - 1)
    return CertifiedTable(book, weights, pieces, pieces + 1)


@st.composite
def tables(draw: st.DrawFn) -> CertifiedTable:
    """Continuous tables of 2 to 5 levels and 2 or 3 rows, near enough to each other to be hidden by a few."""
    levels, count = draw(st.integers(2, 5)), draw(st.integers(2, 3))
    entry = st.floats(0.05, 1.0)
    base = np.array(draw(st.lists(entry, min_size=levels, max_size=levels)))
    rows = []
    for _ in range(count):
        other = np.array(draw(st.lists(entry, min_size=levels, max_size=levels)))
        row = base / base.sum() + draw(st.floats(0.02, 0.2)) * other / other.sum()
        rows.append(row / row.sum())
    rows.sort(key=lambda row: float(row @ np.arange(levels)))
    means = np.array(rows) @ np.arange(levels)
    if np.any(np.diff(means) < 1e-3):
        # Rows whose means are too close would not be knots of their own.
        rows = [rows[0], rows[0] + 0.05 * (np.eye(levels)[-1] - rows[0])]
    return table_of(np.array(rows))


def sums_of_others(table: CertifiedTable, number: int) -> list[np.ndarray]:
    """The distributions of the sum of ``number`` other clients, for all their inputs at knots."""
    return sums_of(list(table.weights / TOTAL_WEIGHT), number)


def distribution_pairs(table: CertifiedTable, number: int) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Distance of two inputs, and both distributions of the sum with ``number`` others."""
    inputs = np.unique(np.concatenate([np.linspace(-1.0, 1.0, 5), table.knots.clip(-1.0, 1.0)]))
    distributions = table.distribution.pmf(inputs)
    found = []
    for others in sums_of_others(table, number):
        seen = [np.convolve(distribution, others) for distribution in distributions]
        for i, j in itertools.permutations(range(len(inputs)), 2):
            found.append((abs(inputs[i] - inputs[j]), seen[i], seen[j]))
    return found


def hockey_excess(pairs: list[tuple[float, np.ndarray, np.ndarray]], separation: float, rate: float) -> float:
    """By how much a hockey-stick divergence exceeds what is claimed, at most; negative if none does."""
    worst = -math.inf
    for distance, first, second in pairs:
        with np.errstate(divide="ignore"):
            losses = np.log(first / second)
        for epsilon in np.unique(np.abs(np.concatenate([losses, losses / 2.0]))):
            exact = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())
            revealed = rate * distance
            claimed = (1.0 - revealed) * gaussian_delta(separation * distance, epsilon) + revealed
            worst = max(worst, exact - claimed)
    return worst


@settings(max_examples=40, deadline=None)
@given(tables(), st.integers(2, 6))
def test_no_pair_of_inputs_is_told_apart_better_than_certified(table: CertifiedTable, clients: int) -> None:
    certificate = certify_sum(table, clients)
    assert certificate is not None
    separation = certificate.separation(RATE)
    if math.isinf(separation):
        return
    assert hockey_excess(distribution_pairs(table, clients - 1), separation, RATE) <= 1e-14


def test_certificates_for_few_clients_are_finite() -> None:
    """Else the test above would be empty: a table with much noise is certified for six clients, and two."""
    table = table_of(np.array([[0.3, 0.22, 0.2, 0.28], [0.28, 0.2, 0.22, 0.3]]))
    for clients in (2, 6):
        certificate = certify_sum(table, clients)
        assert certificate is not None
        assert certificate.separation(RATE) < 0.5
        assert (
            hockey_excess(distribution_pairs(table, clients - 1), certificate.separation(RATE), RATE) <= 1e-14
        )


def test_a_certificate_for_more_clients_than_there_are_is_caught() -> None:
    """Negative control: brute force finds what is claimed too much."""
    table = table_of(np.array([[0.3, 0.22, 0.2, 0.28], [0.28, 0.2, 0.22, 0.3]]))
    certificate = certify_sum(table, 12)
    assert certificate is not None
    pairs = distribution_pairs(table, 2)
    assert hockey_excess(pairs, certificate.separation(RATE), RATE) > 1e-4
    assert renyi_excess(pairs, lambda order: certificate.renyi(order)) > 1e-4


def renyi_excess(pairs: list[tuple[float, np.ndarray, np.ndarray]], rate: object) -> float:
    """By how much a Rényi divergence exceeds rate(order) * distance^2, at most."""
    assert callable(rate)
    worst = -math.inf
    for order in (1.3, 2.0, 2.5, 3.0, 4.5, 10.0):
        claimed = rate(order)
        for distance, first, second in pairs:
            exact = math.log(float((first**order * second ** (1.0 - order)).sum())) / (order - 1.0)
            worst = max(worst, exact - claimed * distance**2)
    return worst


@settings(max_examples=25, deadline=None)
@given(tables(), st.integers(2, 6))
def test_no_renyi_divergence_is_above_the_certified(table: CertifiedTable, clients: int) -> None:
    certificate = certify_sum(table, clients)
    assert certificate is not None
    assert renyi_excess(distribution_pairs(table, clients - 1), certificate.renyi) <= 1e-12


def test_two_coordinates_cost_their_distance() -> None:
    """Updates at L2 distance R, however spread over two coordinates, are as N(0, 1) and N(a R, 1)."""
    table = table_of(np.array([[0.3, 0.22, 0.2, 0.28], [0.28, 0.2, 0.22, 0.3]]))
    certificate = certify_sum(table, 4)
    assert certificate is not None
    separation = certificate.separation(RATE)
    others = sums_of_others(table, 3)[1]
    for angle in (0.1, 0.5, math.pi / 4):
        steps = 1.5 * math.cos(angle), 1.5 * math.sin(angle)
        distributions = [
            [
                np.convolve(distribution, others)
                for distribution in table.distribution.pmf([-step / 2.0, step / 2.0])
            ]
            for step in steps
        ]
        first, second = (np.outer(distributions[0][k], distributions[1][k]).ravel() for k in (0, 1))
        for epsilon in np.linspace(0.0, 0.3, 31):
            exact = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())
            assert exact <= gaussian_delta(1.5 * separation, epsilon) + RATE * math.sqrt(2.0) * 1.5


def test_many_clients_come_close_to_a_central_gaussian() -> None:
    """One bit with values +-20: the sum of 1000 is nearly normal, and the certificate says so."""
    value = 20.0
    low = 0.5 - 0.5 / value
    table = table_of(np.array([[1.0 - low, low], [low, 1.0 - low]]))
    certificate = certify_sum(table, 1000)
    assert certificate is not None
    normal = 1.0 / math.sqrt(1000.0 * value**2)
    assert normal < math.sqrt(certificate.information) < 1.03 * normal
    assert math.sqrt(certificate.information) <= certificate.separation(RATE) < 1.05 * normal
    assert certificate.renyi(2.0) < certificate.renyi(8.0) < 4.2 * certificate.information


def test_more_clients_hide_more() -> None:
    table = table_of(np.array([[0.55, 0.45], [0.45, 0.55]]))
    found = [certify_sum(table, clients) for clients in (10, 30, 100, 300)]
    informations = [each.information for each in found if each is not None]
    assert len(informations) == 4
    assert informations == sorted(informations, reverse=True)


def test_distributions_that_jump_or_exclude_an_output_have_no_certificate() -> None:
    values, thirds = np.array([-5.0, 0.0, 5.0]), np.array([0.4, 0.2, 0.4])
    for middle, smooth in (([0.4, 0.2, 0.4], True), ([0.3, 0.4, 0.3], False)):
        distribution = OutputDistribution(
            values,
            np.array([-1.0, 0.0]),
            np.array([0.0, 1.0]),
            np.array([[0.5, 0.2, 0.3], middle]),
            np.array([thirds, [0.3, 0.2, 0.5]]),
        )
        table = CertifiedTable.from_distribution(distribution, Codebook(np.arange(3), 5.0, -5.0), 1.0)
        assert (certify_sum(table, 100) is not None) == smooth
        assert certify_sum(table, 1) is None
    assert certify_sum(table_of(np.array([[1.0, 0.0], [0.4, 0.6]])), 100) is None


@given(st.floats(1e-3, 1.0), st.floats(0.0, 6.0), st.floats(0.05, 0.99))
def test_the_normal_pair_is_easier_to_cover_at_smaller_distances(
    separation: float, score: float, share: float
) -> None:
    """Step 4 of the proof: G falls with the distance, so that the largest is the one to check."""

    def covered(distance: float) -> float:
        strike = min(score * separation, 0.99 * 2.0 / distance)
        middle = distance * separation
        threshold = 2.0 * math.atanh(0.5 * distance * strike) / middle
        upper, lower = norm.cdf(middle / 2.0 - threshold), norm.cdf(-middle / 2.0 - threshold)
        return float((upper - lower) / distance - strike * (upper + lower) / 2.0)

    if score * separation < 0.9:
        assert covered(2.0 * share) >= covered(2.0) - 1e-12


@given(st.floats(0.01, 0.5), st.floats(0.0, 0.9))
def test_tangents_lie_below_the_normal_score(separation: float, strike: float) -> None:
    near = np.array([strike, min(strike + 0.05, 0.94)])
    value, slope = _normal_score(separation, near)
    tangent = value[0] - slope[0] * (near[1] - near[0])
    assert tangent <= value[1] + 1e-12


def test_targets_of_the_normal_distribution() -> None:
    for epsilon, delta in ((1.0, 1e-5), (4.0, 1e-5), (10.0, 1e-9), (0.1, 1e-3)):
        separation = gaussian_separation(epsilon, delta)
        assert gaussian_delta(separation, epsilon) <= delta
        assert gaussian_delta(separation * 1.001, epsilon) > delta
    assert gaussian_delta(0.0, 1.0) == 0.0


def test_what_an_update_is_charged_is_far_below_any_delta() -> None:
    update = UpdateBound(60.0, 7850)
    assert update.widened == pytest.approx(60.0, rel=1e-6)
    assert update.rate * math.sqrt(7850) * update.widened == pytest.approx(1e-11)
    assert 1e-11 < update.charge < 1.1e-11


@pytest.mark.parametrize("inputs", [[-1.0, -0.6, 1.0], [-1.0, -0.9, 1.0]])
def test_rows_that_mirror_at_knots_that_do_not_are_no_symmetric_distribution(inputs: list[float]) -> None:
    """Both signs of a slope count: brute force over the steeper piece, as over the other."""
    rows = np.array([[0.4, 0.2, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25], [0.2, 0.2, 0.2, 0.4]])
    weights = np.rint(rows * TOTAL_WEIGHT).astype(np.int64)
    weights[:, 0] += TOTAL_WEIGHT - weights.sum(axis=1)
    table = BiasedTable(
        Codebook(np.arange(4), 1.0, -1.5), weights, np.array([0, 1]), np.array([1, 2]), np.array(inputs)
    )
    certificate = certify_sum(table, 5)
    assert certificate is not None
    assert renyi_excess(distribution_pairs(table, 4), certificate.renyi) <= 1e-12


def test_rows_that_no_input_is_drawn_from_change_nothing() -> None:
    rows = np.array([[0.6875, 0.0625, 0.25], [0.25, 0.0625, 0.6875]])
    table = table_of(rows)
    unused = np.rint(np.array([0.9275, 0.0625, 0.01]) * TOTAL_WEIGHT).astype(np.int64)
    unused[0] += TOTAL_WEIGHT - unused.sum()
    padded = CertifiedTable(
        table.codebook, np.vstack([table.weights, unused]), table.start_rows, table.end_rows
    )
    first, second = certify_sum(table, 300), certify_sum(padded, 300)
    assert first is not None
    assert second is not None
    assert first.separation(RATE) == second.separation(RATE)
    assert first.information == second.information


def test_pieces_that_overlap_or_reach_far_out_have_no_certificate() -> None:
    rows = np.array([[0.6, 0.4], [0.5, 0.5], [0.5, 0.5], [0.4, 0.6]])
    weights = np.rint(rows * TOTAL_WEIGHT).astype(np.int64)
    weights[:, 0] += TOTAL_WEIGHT - weights.sum(axis=1)
    book = Codebook(np.arange(2), 10.0, -5.0)
    for middle, certified in ((0.0, True), (5e-9, False)):
        inputs = np.array([-1.0, middle, 0.0, 1.0])
        table = BiasedTable(book, weights, np.array([0, 2]), np.array([1, 3]), inputs)
        assert (certify_sum(table, 100) is not None) == certified
    far = BiasedTable(book, weights[[0, 3]], np.array([0]), np.array([1]), np.array([-1e6, 1e6]))
    assert certify_sum(far, 100) is None
