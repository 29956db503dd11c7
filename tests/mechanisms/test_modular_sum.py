"""Rings narrower than the range of sums: the bound holds by brute force, and sums come back as they were."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import CodeOverflowError
from fl_privquant.mechanisms.modular_sum import WRAP_ODDS, SumRing, find_narrowest_ring, honest_reach
from tests.exact import sums_of

LAWS: dict[str, Any] = {
    "optm": lambda: pq.design("optm", epsilon=1.0, bits=2),
    "one_bit": lambda: pq.design("one_bit", epsilon=0.5),
    "pbm": lambda: pq.design("pbm", theta=0.1, levels=5),
    "rqm": lambda: pq.design("rqm", epsilon=1.5, levels=4),
}


def worst_tail(mechanism: Any, num_clients: int, reach: float) -> float:
    """The largest probability of a sum beyond ``reach``, over all clients' rows: every multiset of rows."""
    codebook, rows = mechanism.codebook, np.unique(mechanism.distribution.rows, axis=0)
    listed = np.zeros((len(rows), codebook.max_code + 1))
    listed[:, codebook.codes] = rows
    center = -num_clients * codebook.offset / codebook.step
    worst = 0.0
    for total in sums_of(listed, num_clients):
        off = np.arange(total.size) - center
        worst = max(worst, float(total[off >= reach].sum()), float(total[off <= -reach].sum()))
    return worst


@pytest.mark.parametrize("name", ["optm", "one_bit", "rqm"])
@pytest.mark.parametrize("num_clients", [1, 2, 3])
def test_no_inputs_exceed_the_reach_more_often_than_stated(name: str, num_clients: int) -> None:
    mechanism = LAWS[name]()
    deviations = mechanism.codes + mechanism.codebook.offset / mechanism.codebook.step
    reached = []
    for log_odds in (0.5, 1.0, 2.0, 4.0):
        reach = honest_reach(deviations, mechanism.distribution.rows, num_clients, log_odds)
        tail = worst_tail(mechanism, num_clients, reach)
        assert tail <= math.exp(-log_odds)
        reached.append(worst_tail(mechanism, num_clients, 0.6 * reach) > math.exp(-log_odds))
    # The bound is not idle: a little less would not hold.
    assert any(reached)


def test_the_bound_of_many_bits_is_close_to_their_exact_tail() -> None:
    """1000 clients at the clip: a binomial sum, whose tail is known."""
    from scipy.stats import binom

    mechanism = pq.design("pbm", theta=0.02, levels=2)
    deviations = mechanism.codes - 0.5
    reach = honest_reach(deviations, mechanism.distribution.rows, 1000, math.log(1e12))
    upper = float(mechanism.distribution.rows[:, 1].max())
    exact = binom.isf(1e-12, 1000, upper) - 500
    assert exact <= reach <= 1.06 * exact
    assert binom.sf(500 + reach, 1000, upper) <= 1e-12


@pytest.mark.parametrize("name", sorted(LAWS))
@pytest.mark.parametrize("num_clients", [50, 400])
def test_sums_of_honest_clients_come_back_whatever_they_hold(name: str, num_clients: int) -> None:
    """8 rounds of 3000 coordinates a mechanism, at odds of 1e-9 each; fewer survive than were asked."""
    mechanism, dimension = LAWS[name](), 3000
    ring = mechanism.sum_ring(num_clients, dimension)
    stream = pq.RandomStream.seeded(num_clients)
    for share in (-1.0, 0.0, 0.4, 1.0):
        for survivors in (num_clients, num_clients - num_clients // 10):
            inputs = np.full(dimension, share)
            total = sum(
                mechanism.to_codes(mechanism.encode(inputs, rng=stream)).astype(np.int64)
                for _ in range(survivors)
            )
            residues = ring.residues(total)
            assert residues.max() < 1 << ring.bits
            np.testing.assert_array_equal(ring.unwrap(residues.astype(np.uint32), survivors), total)


def test_rings_are_narrower_where_noise_spreads_less_than_codes_reach() -> None:
    mechanism = pq.design("pbm", theta=0.012, levels=2)
    widths = {n: (mechanism.sum_bits(n), mechanism.sum_ring(n, 7850).bits) for n in (40, 100, 1000, 10_000)}
    assert widths == {40: (6, 6), 100: (7, 7), 1000: (10, 9), 10_000: (14, 10)}
    assert mechanism.sum_ring(40, 7850) == SumRing(6, 1)


def test_mechanisms_without_a_distribution_of_codes_keep_their_ring() -> None:
    designs = {"none": {"fixed_point_bits": 20}, "skellam": {"epsilon": 2.0, "num_clients": 9}}
    for name, parameters in designs.items():
        mechanism = pq.design(name, **parameters)
        assert mechanism.sum_ring(9, 100) == SumRing(mechanism.sum_bits(9), mechanism.max_code)


def test_a_ring_that_is_too_narrow_wraps_and_the_true_one_does_not() -> None:
    """The negative control: one bit less than the bound asks for is not enough for inputs at the clip."""
    mechanism, num_clients = pq.design("one_bit", epsilon=0.5), 1000
    ring = mechanism.sum_ring(num_clients, 500)
    assert ring.bits < mechanism.sum_bits(num_clients)
    stream = pq.RandomStream.seeded(5)
    total = sum(mechanism.encode(np.ones(500), rng=stream).astype(np.int64) for _ in range(num_clients))
    np.testing.assert_array_equal(ring.unwrap(ring.residues(total), num_clients), total)
    too_narrow = SumRing(ring.bits - 1, None, ring.center, ring.largest)
    assert np.any(too_narrow.unwrap(too_narrow.residues(total), num_clients) != total)


def test_an_asymmetric_distribution_is_opened_around_its_own_middle() -> None:
    """Codes 0, 1, 9 for -1, 0, 8: the middle of the window is code 1 of each client, not 4.5."""
    book = Codebook(np.array([0, 1, 9]), 1.0, -1.0)
    distribution = OutputDistribution.from_knots(
        book.values, np.array([-1.0, 1.0]), np.array([[0.08, 0.91, 0.01]] * 2)
    )
    ring = find_narrowest_ring(book, distribution, 500, 10)
    assert (ring.center, ring.max_code) == (1.0, None)
    assert ring.bits < book.sum_bits(500)
    generator = np.random.default_rng(3)
    total = generator.choice(book.codes, (500, 1000), p=distribution.rows[0]).sum(axis=0)
    np.testing.assert_array_equal(ring.unwrap(ring.residues(total), 500), total)


def test_windows_stay_inside_the_range_of_sums() -> None:
    ring = SumRing(bits=4, max_code=None, center=0.1, largest=1)
    everything = np.arange(16)
    np.testing.assert_array_equal(np.sort(ring.unwrap(everything, 40)), everything)
    with pytest.raises(CodeOverflowError, match=r"a sum of 10 codes lies in 0\.\.10"):
        ring.unwrap(everything, 10)
    np.testing.assert_array_equal(ring.unwrap(everything[:11], 10), everything[:11])


def test_a_codec_takes_the_ring_for_what_it_sends() -> None:
    mechanism = pq.design("one_bit", epsilon=0.3)
    layout = Layout.of({"weight": np.zeros(5000, np.float32)})
    few = UpdateCodec(layout, Encoding(mechanism, 0.1, 1.0, True, keep=10))
    assert few.sum_ring(3000) == mechanism.sum_ring(3000, 10)
    assert few.sum_ring(3000, exact=True) == SumRing(mechanism.sum_bits(3000), 1)
    assert few.sum_ring(3000).bits < mechanism.sum_bits(3000)
    assert WRAP_ODDS == 1e-9
