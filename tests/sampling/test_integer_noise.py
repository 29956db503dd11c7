"""Integer noise: the certified distance holds, draws follow the closed form, a wrong distribution is caught.

The G-tests use fixed seeds. For a right sampler the odds of a p-value below 1e-9 were 1e-9 for each
seed when it was chosen; a wrong sampler is shown to fail the same test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_privquant.errors import InvalidSpecError
from fl_privquant.sampling import integer_noise
from fl_privquant.sampling._noise_table import (
    NoiseTable,
    build_table,
    gaussian_ratios,
    laplace_ratios,
    skellam_ratios,
)
from fl_privquant.sampling.integer_noise import DiscreteGaussian, DiscreteLaplace, Skellam
from fl_privquant.sampling.stream import Continuation, RandomStream, continuation_address
from tests.exact import g_test

Noise = DiscreteLaplace | DiscreteGaussian | Skellam

REJECTED = 1e-9
NUM_DRAWS = 2 * 10**6

NOISES: list[Noise] = [
    DiscreteLaplace(Fraction(3, 2)),
    DiscreteLaplace(Fraction(1, 3)),
    DiscreteLaplace(Fraction(200)),
    DiscreteGaussian(Fraction(9, 4)),
    DiscreteGaussian(Fraction(1, 5)),
    DiscreteGaussian(Fraction(50_000)),
    Skellam(Fraction(9, 4)),
    Skellam(Fraction(1, 10)),
    Skellam(Fraction(50_000)),
]


def p_value(draws: np.ndarray, pmf: Callable[[np.ndarray], np.ndarray]) -> float:
    """That of a G-test that the draws have this distribution."""
    reach = int(np.abs(draws).max()) + 1
    k = np.arange(-reach, reach + 1)
    expected = draws.size * pmf(k)
    expected[[0, -1]] += max(draws.size - expected.sum(), 0.0) / 2.0
    return g_test(np.bincount(draws + reach, minlength=k.size), expected)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_draws_follow_the_closed_form(noise: Noise) -> None:
    draws = noise.sample(NUM_DRAWS, RandomStream.seeded(11, purpose=str(noise)))
    assert p_value(draws, noise.pmf) > REJECTED
    spread = math.sqrt(float(noise.variance) / NUM_DRAWS)
    assert abs(draws.mean()) < 6.2 * spread


@pytest.mark.parametrize(
    ("noise", "wrong"),
    [
        (DiscreteLaplace(Fraction(3, 2)), DiscreteLaplace(Fraction(153, 100))),
        (DiscreteGaussian(Fraction(9, 4)), DiscreteGaussian(Fraction(230, 100))),
        (Skellam(Fraction(9, 4)), Skellam(Fraction(230, 100))),
        (Skellam(Fraction(5)), DiscreteGaussian(Fraction(5))),
    ],
    ids=str,
)
def test_a_wrong_distribution_is_caught(noise: Noise, wrong: Noise) -> None:
    draws = wrong.sample(NUM_DRAWS, RandomStream.seeded(12))
    assert p_value(draws, noise.pmf) < REJECTED


def test_a_wrong_table_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds off by 1 % of a cell: the same test that passes the right table rejects it."""
    noise = DiscreteGaussian(Fraction(9, 4))
    table = build_table(gaussian_ratios(noise.sigma_squared))
    rest = np.uint64(63 - table.cell_bits)
    own = np.arange(table.cells.size, dtype=np.uint64)
    shared = (table.cells >> rest) != own
    cells = table.cells.copy()
    cells[shared] += (np.uint64(1) << rest) // np.uint64(100)
    p_values = []
    for tried in (table.cells, cells):
        draws = np.empty(NUM_DRAWS, dtype=np.int64)
        tried_table = NoiseTable(tried, table.ties, table.probabilities, table.total_variation)
        monkeypatch.setattr(integer_noise, "_tabulate", lambda noise, table=tried_table: table)
        DiscreteGaussian(Fraction(9, 4)).fill(draws, RandomStream.seeded(13), 0)
        p_values.append(p_value(draws, noise.pmf))
    assert p_values[0] > REJECTED > p_values[1]


def ideal(noise: Noise, magnitudes: int) -> list[Decimal]:
    """Probabilities of 0, 1, ... to 80 digits, each from its own definition and not by ratios."""
    if isinstance(noise, Skellam):
        half = Decimal(noise.variance.numerator) / Decimal(2 * noise.variance.denominator)
        weights = []
        for k in range(magnitudes):
            term = half**k / Decimal(math.factorial(k))
            bessel, j = Decimal(0), 0
            while term > bessel * Decimal("1e-90"):
                bessel += term
                j += 1
                term *= half * half / (j * (j + k))
            weights.append(bessel * (-2 * half).exp())
        return weights
    if isinstance(noise, DiscreteLaplace):
        rate = Decimal(noise.scale.denominator) / Decimal(noise.scale.numerator)
        weights = [(-rate * k).exp() for k in range(40 * magnitudes)]
    else:
        rate = Decimal(noise.sigma_squared.denominator) / Decimal(2 * noise.sigma_squared.numerator)
        weights = [(-rate * k * k).exp() for k in range(2 * magnitudes)]
    total = 2 * sum(weights) - 1
    return [weight / total for weight in weights[:magnitudes]]


@pytest.mark.parametrize(
    "noise",
    [
        DiscreteLaplace(Fraction(3, 2)),
        DiscreteLaplace(Fraction(1, 30)),
        DiscreteGaussian(Fraction(9, 4)),
        DiscreteGaussian(Fraction(1000, 7)),
        DiscreteGaussian(Fraction(1, 100)),
        Skellam(Fraction(9, 4)),
        Skellam(Fraction(1, 1000)),
        Skellam(Fraction(40)),
    ],
    ids=str,
)
def test_certified_distance(noise: Noise) -> None:
    table = integer_noise._tabulate(noise)
    units = table.units()
    assert sum(units) == 1 << 127
    assert not any(units[table.largest + 1 :])
    assert 0.0 < noise.total_variation < 2.0**-100
    with localcontext() as context:
        context.prec = 100
        exact = ideal(noise, table.largest + 1)
        exact = [exact[0], *(2 * p for p in exact[1:])]
        drawn = [Decimal(u) / (1 << 127) for u in units]
        lacking = sum(max(p - q, Decimal(0)) for p, q in zip(exact, drawn, strict=False))
        distance = lacking + (1 - sum(exact))
        assert distance <= Decimal(noise.total_variation)
        # And it is a bound that means something: within a factor 1000 of the truth.
        assert distance >= Decimal(noise.total_variation) / 1000
        closed = noise.pmf(np.arange(table.largest + 1))
        signed = [float(exact[0]), *(float(p) / 2.0 for p in exact[1:])]
        np.testing.assert_allclose(closed, signed, rtol=1e-13)
        np.testing.assert_allclose(table.probabilities, signed, rtol=1e-15)


@settings(deadline=None, max_examples=60)
@given(st.fractions(min_value=Fraction(1, 10**6), max_value=400))
def test_every_table_is_certified(parameter: Fraction) -> None:
    for table in (
        build_table(laplace_ratios(parameter)),
        build_table(gaussian_ratios(parameter)),
        build_table(skellam_ratios(parameter)),
    ):
        assert sum(table.units()) == 1 << 127
        assert table.total_variation < 2.0**-100


def test_the_largest_tables() -> None:
    for noise in (DiscreteLaplace(Fraction(3_700)), Skellam(Fraction(20_000**2))):
        assert noise.total_variation < 2.0**-100
        draws = noise.sample(10**5, RandomStream.seeded(3))
        assert draws.var() == pytest.approx(float(noise.variance), rel=0.05)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_pmf_tail_and_variance_agree(noise: Noise) -> None:
    reach = noise.largest
    assert reach is not None
    k = np.arange(-reach, reach + 1)
    pmf = noise.pmf(k)
    assert pmf.sum() == pytest.approx(1.0, rel=1e-12)
    assert (pmf * k.astype(float) ** 2).sum() == pytest.approx(float(noise.variance), rel=1e-11)
    for cut in (0, 1, reach // 4):
        assert noise.tail(cut) == pytest.approx(pmf[np.abs(k) > cut].sum(), rel=1e-9, abs=1e-28)
    assert noise.tail(-1) == 1.0
    assert noise.tail(reach + 1) < 2.0**-100
    np.testing.assert_array_equal(noise.pmf(k), noise.pmf(-k))
    assert noise.pmf(0).shape == ()
    assert noise.pmf([[1, 2], [3, reach + 5]]).shape == (2, 2)


def test_variance_of_the_discrete_gaussian_is_below_its_parameter() -> None:
    assert DiscreteGaussian(Fraction(1, 10)).variance < 0.1
    assert DiscreteGaussian(Fraction(10)).variance == pytest.approx(10.0, rel=1e-12)


@pytest.mark.parametrize("noise", NOISES[::3], ids=str)
def test_same_seed_same_noise_in_any_pieces(noise: Noise, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = noise.sample(300, RandomStream.seeded(5, client=2))
    assert whole.dtype == np.int64
    stream = RandomStream.seeded(5, client=2)
    pieces = np.concatenate([noise.sample(100, stream), noise.sample(0, stream), noise.sample(200, stream)])
    np.testing.assert_array_equal(pieces, whole)
    monkeypatch.setattr(integer_noise, "_CHUNK", 7)
    np.testing.assert_array_equal(noise.sample((20, 15), RandomStream.seeded(5, client=2)).ravel(), whole)
    assert not np.array_equal(noise.sample(300, RandomStream.seeded(5, client=3)), whole)
    assert noise.sample((), RandomStream.seeded(5, client=2)) == whole[0]


class ScriptedStream(RandomStream):
    """Words that are prescribed, by address."""

    def __init__(self, words: dict[int, int]) -> None:
        super().__init__(bytes(32), simulated=True)
        self._words = words

    def fill(self, out: np.ndarray, first_word: int) -> None:
        for i in range(out.size):
            out[i] = self._words[first_word + i]

    def integer(self, first_word: int, count: int) -> int:
        assert count == 1
        return self._words[first_word]


def test_a_tie_is_decided_by_a_second_word() -> None:
    noise = DiscreteGaussian(Fraction(9, 4))
    table = integer_noise._tabulate(noise)
    rest_bits = 63 - table.cell_bits
    for cell in range(table.cells.size):
        alias = int(table.cells[cell]) >> rest_bits
        threshold = int(table.cells[cell]) & ((1 << rest_bits) - 1)
        tie = int(table.ties[cell])
        if alias == cell or not tie or not threshold:
            continue
        for sign in (1, -1):
            start = cell << (64 - table.cell_bits)
            at = [
                start | (rest << 1) | (sign < 0)
                for rest in (threshold - 1, threshold, threshold, threshold + 1)
            ]
            words = dict(enumerate(at))
            words |= {continuation_address(1): tie - 1, continuation_address(2): tie}
            drawn = noise.sample(4, ScriptedStream(words))
            assert drawn.tolist() == [sign * cell, sign * cell, sign * alias, sign * alias]


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "x", None])
@pytest.mark.parametrize("kind", [DiscreteLaplace, DiscreteGaussian, Skellam])
def test_bad_parameters_are_refused(kind: type, value: object) -> None:
    with pytest.raises(InvalidSpecError, match=r"expected a finite number|not above 0"):
        kind(value)


def test_parameters_may_be_any_number() -> None:
    assert DiscreteGaussian(2.25) == DiscreteGaussian(Fraction(9, 4))  # type: ignore[arg-type]
    assert Skellam(4).variance == Fraction(4)  # type: ignore[arg-type]


def test_skellam_beyond_tables_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="coarser lattice"):
        Skellam(Fraction(20_000**2 + 1))


def test_pmf_is_of_integers() -> None:
    with pytest.raises(InvalidSpecError, match="float64"):
        DiscreteGaussian(Fraction(1)).pmf(0.5)


def test_noise_too_wide_for_a_table_is_known_and_not_drawn() -> None:
    for noise in (DiscreteGaussian(Fraction(10**12)), DiscreteLaplace(Fraction(10**6))):
        assert noise.total_variation == 0.0
        assert noise.largest is None
        assert noise.tail(0) == pytest.approx(1.0, abs=1e-5)
        with pytest.raises(InvalidSpecError, match="too large to be drawn"):
            noise.sample(1, RandomStream.seeded(8))
        with pytest.raises(InvalidSpecError, match="too large to be drawn"):
            noise.units()


def test_uniform_integers() -> None:
    source = Continuation(RandomStream.seeded(1), 0)
    assert [source.below(1) for _ in range(3)] == [0, 0, 0]
    draws = np.array([source.below(5) for _ in range(20_000)])
    assert stats.chisquare(np.bincount(draws, minlength=5)).pvalue > REJECTED
    assert source.below(1 << 5000) < 1 << 5000
