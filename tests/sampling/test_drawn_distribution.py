"""What is drawn against the exact distribution: G-tests of 10^7 draws; broken samplers must fail.

Seeds are fixed, so an outcome never changes between runs. With fresh seeds an honest sampler would
fail a G-test once in 10^6.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import special, stats

import fl_privquant as pq
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.sampling.kernel import Sampler, Tables
from fl_privquant.sampling.stream import RandomStream
from tests.exact import g_test
from tests.typical import typical

DRAWS = 10**7
FAILURE_ODDS = 1e-6


def inputs_of(table: CertifiedTable, max_pieces: int = 6) -> np.ndarray:
    """Knots from both sides, points between them, and both ends of the range."""
    distribution = table.distribution
    chosen = np.unique(np.linspace(0, distribution.starts.size - 1, max_pieces).astype(int))
    starts, ends = distribution.starts[chosen], distribution.ends[chosen]
    between = [starts + share * (ends - starts) for share in (0.001, 0.37, 0.5, 0.98)]
    before_ends = np.nextafter(ends, -np.inf)
    return np.unique(np.clip(np.concatenate([starts, *between, before_ends, [-1.0, 1.0]]), -1.0, 1.0))


def p_value(sampler: Sampler, x: np.ndarray) -> float:
    """Probability that an honest sampler is as far from the exact distribution at the inputs ``x``."""
    stream, draws = RandomStream.seeded(1), DRAWS // x.size
    expected = draws * sampler.table.distribution.pmf(x)
    codes = [sampler.encode(np.full(draws, point), stream=stream) for point in x]
    observed = np.array([np.bincount(each, minlength=expected.shape[1]) for each in codes])
    return g_test(observed.ravel(), expected.ravel())


# Two outputs, rows that jump at bins, and as many outputs as a byte holds.
TABLES = {
    "one_bit": lambda: typical("one_bit").table,
    "rqm": lambda: pq.design("rqm", margin=1.7, keep=0.22).table,
    "8 bits": lambda: pq.design("grr", epsilon=4.0, levels=256).table,
}


@pytest.mark.parametrize("name", TABLES)
def test_draws_follow_the_exact_distribution(name: str) -> None:
    table = TABLES[name]()
    assert p_value(Sampler(table), inputs_of(table)) > FAILURE_ODDS


def low_thresholds(tables: Tables) -> Tables:
    """Alias thresholds that are 1 % too low."""
    below = np.uint32((1 << tables.shift) - 1)
    threshold = tables.cells & below
    return tables._replace(cells=(tables.cells & ~below) | (threshold - threshold // 100))


def low_dither(tables: Tables) -> Tables:
    """Row thresholds that are 5 % too low."""
    return tables._replace(scales=tables.scales * 0.95)


@pytest.mark.parametrize("broken", [low_thresholds, low_dither])
@pytest.mark.parametrize("name", TABLES)
def test_a_broken_kernel_is_caught(name: str, broken: Callable[[Tables], Tables]) -> None:
    table = TABLES[name]()
    sampler = Sampler(table)
    sampler._tables = broken(sampler._tables)
    assert p_value(sampler, inputs_of(table)) < FAILURE_ODDS


@pytest.mark.parametrize("lag", [1, 2, 1 << 15])
def test_neighboring_draws_are_independent(lag: int) -> None:
    table = TABLES["rqm"]()
    indices = Sampler(table).encode(np.full(DRAWS // 2, 0.1), stream=RandomStream.seeded(4))
    # Pairs that share no draw: blocks of 2 lag, first half with second half.
    blocks = indices[: indices.size // (2 * lag) * 2 * lag].reshape(-1, 2, lag)
    first, second = blocks[:, 0].ravel(), blocks[:, 1].ravel()
    observed = np.bincount(4 * first + second, minlength=16)
    row = table.distribution.pmf(0.1)[0]
    statistic = 2.0 * special.rel_entr(observed, first.size * np.outer(row, row).ravel()).sum()
    assert stats.chi2.sf(statistic, 15) > FAILURE_ODDS
