"""A server that sends a mechanism made to keep the client's accountant busy, or to fill its memory."""

from __future__ import annotations

import math
import time
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from fl_privquant.law.codebook import Codebook
from fl_privquant.law.table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.loss.norms import Norms
from fl_privquant.mechanisms.base import Mechanism, TableMechanism
from fl_privquant.mechanisms.discrete_laplace import DiscreteLaplaceMechanism
from fl_privquant.mechanisms.pbm import PbmMechanism
from fl_privquant.sampling.discrete import DiscreteLaplace
from fl_privquant.statement import View


def wide_table() -> Mechanism:
    """Two rows on the codes 0, 1 and 2^20: sums of a thousand have a thousand million points."""
    third = TOTAL_WEIGHT // 3
    low = [third + 1000, third, TOTAL_WEIGHT - 2 * third - 1000]
    weights = np.array([low, [third, third, TOTAL_WEIGHT - 2 * third]])
    codes = np.array([0, 1, 1 << 20])
    means = weights @ codes / TOTAL_WEIGHT
    step = 2.0 / float(means[1] - means[0])
    table = CertifiedTable(
        Codebook(codes, step, -1.0 - step * float(means[0])), weights, np.array([0]), np.array([1])
    )
    return TableMechanism("wide", table, table.epsilon)


def many_bits() -> Mechanism:
    """Sums of 4095 bits: in ten thousand clients 40 million of them."""
    return PbmMechanism.of_bits(4095, TOTAL_WEIGHT // 2 - 1_000_000, {})


def many_pieces(rows: int) -> Mechanism:
    """A continuous law of three outputs that bends at every row; pairs of pieces are their number squared."""
    middle = ((0.3 + 0.05 * np.cos(np.arange(rows))) * TOTAL_WEIGHT).astype(np.int64)
    tilt = (0.2 * TOTAL_WEIGHT * np.linspace(-1.0, 1.0, rows)).astype(np.int64)
    high = (TOTAL_WEIGHT - middle) // 2 + tilt
    weights = np.stack([TOTAL_WEIGHT - middle - high, middle, high], axis=1)
    means = weights @ np.arange(3) / TOTAL_WEIGHT
    step = 2.0 / float(means[-1] - means[0])
    codebook = Codebook(np.arange(3), step, -1.0 - step * float(means[0]))
    table = CertifiedTable(codebook, weights, np.arange(rows - 1), np.arange(1, rows))
    return TableMechanism("bent", table, table.epsilon)


@pytest.mark.parametrize("rows", [400, 5000])
def test_a_law_of_many_pieces_does_not_fill_the_memory(rows: int) -> None:
    mechanism = Mechanism.from_bytes(many_pieces(rows).to_bytes())
    tracemalloc.start()
    for named in mechanism.update_losses(Norms(l2=3.0), 100, View()):
        assert not math.isnan(named.loss.log_moment(1.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 26


@pytest.mark.parametrize(("make", "seconds"), [(wide_table, 5.0), (many_bits, 60.0)])
def test_bounds_by_the_norm_stay_within_time_and_memory(make: object, seconds: float) -> None:
    mechanism = Mechanism.from_bytes(make().to_bytes())  # type: ignore[operator]
    tracemalloc.start()
    start = time.process_time()
    for named in mechanism.update_losses(Norms(l2=30.0), 7850, View(10_000)):
        assert not math.isnan(named.loss.log_moment(1.0))
    spent = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spent < seconds
    assert peak < 1 << 29


def test_wide_laplace_noise_is_given_up_before_its_sum_is_listed() -> None:
    noise = DiscreteLaplace(Fraction(3600))
    mechanism = DiscreteLaplaceMechanism("discrete_laplace", noise, 65_536, 1000, 32, 19.0, 0.0, 1e-9)
    start = time.process_time()
    mechanism.update_losses(Norms(l2=30.0), 7850, View(1000))
    assert time.process_time() - start < 60.0
