"""A server that sends a mechanism made to keep the client's accountant busy, or to fill its memory."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fl_privquant.distributions.certified_table import TOTAL_WEIGHT, CertifiedTable
from fl_privquant.distributions.codebook import Codebook
from fl_privquant.mechanisms.additive.discrete_laplace import DiscreteLaplaceMechanism
from fl_privquant.mechanisms.base import Mechanism, TableMechanism
from fl_privquant.mechanisms.tables.pbm import PbmMechanism
from fl_privquant.privacy_loss.update_bounds import UpdateNorms, WholeUpdate
from fl_privquant.sampling.integer_noise import DiscreteLaplace
from fl_privquant.statement import View
from tests.memory import assert_fewer_bytes


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
    return PbmMechanism.from_bit_weights(4095, TOTAL_WEIGHT // 2 - 1_000_000, {})


def many_pieces(rows: int) -> Mechanism:
    """A continuous distribution of three outputs that bends at every row; pairs of pieces are many."""
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
def test_a_distribution_of_many_pieces_does_not_fill_the_memory(rows: int) -> None:
    mechanism = Mechanism.from_bytes(many_pieces(rows).to_bytes())
    with assert_fewer_bytes(1 << 26):
        for named in mechanism.update_losses(WholeUpdate(UpdateNorms(l2=3.0), 100, View())):
            assert not math.isnan(named.loss.log_moment(1.0))


@pytest.mark.parametrize("make", [wide_table, many_bits])
def test_bounds_by_the_norm_stay_within_memory(make: object) -> None:
    mechanism = Mechanism.from_bytes(make().to_bytes())  # type: ignore[operator]
    with assert_fewer_bytes(1 << 29):
        for named in mechanism.update_losses(WholeUpdate(UpdateNorms(l2=30.0), 7850, View(10_000))):
            assert not math.isnan(named.loss.log_moment(1.0))


def test_wide_laplace_noise_is_given_up_before_its_sum_is_listed() -> None:
    noise = DiscreteLaplace(Fraction(3600))
    mechanism = DiscreteLaplaceMechanism("discrete_laplace", noise, 65_536, 1000, 32, 19.0, 0.0, 1e-9)
    with assert_fewer_bytes(1 << 28):
        mechanism.update_losses(WholeUpdate(UpdateNorms(l2=30.0), 7850, View(1000)))
