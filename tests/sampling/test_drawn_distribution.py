"""What is drawn against the exact distribution: G-tests of 10^7 draws; broken samplers must fail.

Seeds are fixed, so an outcome never changes between runs. With fresh seeds an honest sampler would
fail a G-test once in 10^6, and a bound of 5 standard errors about once in 2 * 10^6 a point.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import special, stats

import fl_privquant as pq
from fl_privquant.distributions.certified_table import CertifiedTable
from fl_privquant.mechanisms.base import TableMechanism
from fl_privquant.sampling.kernel import Sampler, Tables
from fl_privquant.sampling.stream import RandomStream
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


def g_test(sampler: Sampler, x: np.ndarray, seed: int) -> float:
    """Probability that an honest sampler is as far from the exact distribution at the inputs ``x``."""
    stream = RandomStream.seeded(seed)
    draws = DRAWS // x.size
    expected = draws * sampler.table.distribution.pmf(x)
    observed = np.array(
        [
            np.bincount(sampler.encode(np.full(draws, point), stream=stream), minlength=expected.shape[1])
            for point in x
        ]
    )
    # The chi-square distribution of the statistic needs some draws in each class.
    assert expected[expected > 0.0].min() > 10.0
    if np.any(observed[expected == 0.0]):
        return 0.0
    statistic = 2.0 * special.rel_entr(observed, expected).sum()
    freedom = (expected > 0.0).sum() - x.size
    return float(stats.chi2.sf(statistic, freedom))


REGISTERED = {
    "optm": {},
    "optm paired": {"family": "paired", "objective": "mae"},
    "optm paper": {"family": "independent", "objective": "mae", "bins": (-3.0, -0.5, 0.5, 3.0)},
    "rqm": {"levels": 8},
    "erm": {"gamma": 0.043, "bins": (-2.7, -0.4, 0.4, 2.7), "epsilon": None},
    "one_bit": {},
    "mvu": {},
    "imvu": {},
    "grr": {"levels": 5},
    "biased": {},
    "csgm": {},
}


@pytest.mark.parametrize("label", REGISTERED)
def test_draws_of_table_mechanisms_follow_their_exact_distribution(label: str) -> None:
    table = typical(label.split(" ")[0], **REGISTERED[label]).table
    assert g_test(Sampler(table), inputs_of(table), seed=2) > FAILURE_ODDS


def test_every_table_mechanism_is_tested() -> None:
    designs = (typical(name) for name in pq.available_mechanisms())
    tables = {each.name for each in designs if isinstance(each, TableMechanism)}
    assert tables == {label.split(" ")[0] for label in REGISTERED}


# Two outputs, rows that jump at bins, and as many outputs as a byte holds.
TABLES = {
    "one_bit": lambda: typical("one_bit").table,
    "rqm": lambda: pq.design("rqm", margin=1.7, keep=0.22).table,
    "8 bits": lambda: pq.design("grr", epsilon=4.0, levels=256).table,
}


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
    assert g_test(sampler, inputs_of(table), seed=1) < FAILURE_ODDS


@pytest.mark.parametrize("name", TABLES)
def test_the_mean_is_unbiased_at_every_input(name: str) -> None:
    table = TABLES[name]()
    sampler, stream = Sampler(table), RandomStream.seeded(2)
    x = inputs_of(table, max_pieces=2)
    draws = DRAWS // x.size
    deviations = table.distribution.error_at(x, power=2) ** 0.5
    for point, deviation in zip(x, deviations, strict=True):
        indices = sampler.encode(np.full(draws, 0.3 * point), clip=0.3, stream=stream)
        counts = np.bincount(indices, minlength=table.codebook.num_levels)
        mean = table.codebook.decode(np.arange(counts.size), clip=0.3) @ counts / draws
        assert abs(mean - 0.3 * point) < 5.0 * 0.3 * deviation / draws**0.5


def test_the_mean_is_unbiased_over_an_update() -> None:
    table = TABLES["rqm"]()
    x = np.random.default_rng(0).uniform(-1.0, 1.0, DRAWS).astype(np.float32)
    indices = Sampler(table).encode(x, stream=RandomStream.seeded(3))
    errors = table.codebook.decode(indices) - x
    assert abs(errors.mean()) < 5.0 * errors.std() / DRAWS**0.5
    # And the error is as large as the distribution says: the audit and the sampler agree.
    assert errors.std() ** 2 == pytest.approx(table.distribution.mse(), rel=3e-3)


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
