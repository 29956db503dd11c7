"""The shared codebook: chances in integers, no bias, and nearly the least error with a few bits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

import fl_privquant as pq
from fl_privquant.errors import CertificationError, CodeOverflowError, InvalidSpecError
from fl_privquant.mechanisms.vectors.shared_codebook import (
    draw_subset_response,
    expected_near_sum,
    near_weight,
)
from fl_privquant.mechanisms.vectors.sphere import RandomCodebook, privunit_squared_error
from tests.mechanisms.forgery import forged


def design_codebook(epsilon: float = 2.0, dimension: int = 12, **parameters: Any) -> Any:
    return pq.design("shared_codebook", epsilon=epsilon, dimension=dimension, **parameters)


# MATH.md, section 12: squared error over that of PrivUnit at 7850 coordinates.
@pytest.mark.parametrize(
    ("bits", "limits"), [(10, (1.02, 1.02, 1.03, 1.06)), (12, (1.01, 1.01, 1.01, 1.03))], ids=["10", "12"]
)
def test_the_error_is_nearly_that_of_the_optimum(bits: int, limits: tuple[float, ...]) -> None:
    for epsilon, limit in zip((1.0, 2.0, 4.0, 8.0), limits, strict=True):
        mechanism = design_codebook(epsilon, 7850, bits=bits)
        ratio = (mechanism.output_norm**2 - 1.0) / privunit_squared_error(epsilon, 7850)
        assert 1.0 <= ratio <= limit


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("dimension", [2, 10, 1000, 10**6])
def test_the_optimum_is_that_of_the_best_cap(epsilon: float, dimension: int) -> None:
    """By integrals over a projection's density, at many caps: none does better, and one comes near."""
    if dimension == 2:
        grid = np.linspace(-0.999, 0.999, 400)
    else:
        grid = np.linspace(-1.0, 6.0, 400) / math.sqrt(dimension)
    distribution = stats.t(dimension - 1)
    found = []
    for height in grid[np.abs(grid) < 1.0]:
        share = float(distribution.sf(math.sqrt(dimension - 1) * height / math.sqrt(1.0 - height**2)))
        # The mean of a projection above a height, by its own density, in angles.
        lower = math.asin(height)
        width = min(math.pi / 2 - lower, 40.0 / math.sqrt(dimension))
        scale = math.exp(math.lgamma(dimension / 2) - math.lgamma((dimension - 1) / 2)) / math.sqrt(math.pi)
        above, _ = integrate.quad(
            lambda a: math.sin(a) * math.cos(a) ** (dimension - 2), lower, lower + width, limit=200
        )
        odds = math.exp(epsilon)
        mean = (odds - 1.0) * above * scale / (odds * share + 1.0 - share)
        found.append(1.0 / mean**2 - 1.0 if mean > 0 else math.inf)
    assert min(found) == pytest.approx(privunit_squared_error(epsilon, dimension), rel=2e-3)
    assert min(found) >= privunit_squared_error(epsilon, dimension) * (1.0 - 1e-6)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 8.0, 50.0, 1000.0])
def test_chances_are_inside_epsilon(epsilon: float) -> None:
    mechanism = design_codebook(epsilon, bits=5)
    common, rare = mechanism._weights
    assert mechanism.epsilon <= epsilon
    if epsilon < 60.0:
        assert math.log(Fraction(common, rare)) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("name", ["shared_codebook", "mmrc", "mrc"])
@pytest.mark.parametrize("repeats", [1, 3, 7, 49, 160])
def test_draws_together_are_inside_epsilon(name: str, repeats: int) -> None:
    """Where a share of epsilon is rounded up, too."""
    for epsilon in (0.3, 1.0, 8.1, 0.7 * repeats, 9.9 * repeats):
        mechanism = pq.design(name, epsilon=epsilon, dimension=12, bits=5, repeats=repeats)
        assert epsilon * (1.0 - 1e-9) < mechanism.epsilon <= epsilon


class Fixed:
    """A source of one given number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def below(self, bound: int) -> int:
        assert 0 <= self.number < bound
        return self.number


@pytest.mark.parametrize("near", [[0], [3], [0, 1, 2], [1, 4, 5], [2, 3, 4, 5]])
def test_every_index_has_its_integer_chances(near: list[int]) -> None:
    """Every number that can be drawn, with small weights: near indices 5 each, the others 2 each."""
    total = len(near) * 5 + (6 - len(near)) * 2
    drawn = [draw_subset_response(np.array(near), 6, (5, 2), Fixed(i)) for i in range(total)]  # type: ignore[arg-type]
    assert {index: drawn.count(index) for index in range(6)} == {
        index: 5 if index in near else 2 for index in range(6)
    }


@pytest.mark.parametrize(("levels", "count", "dimension"), [(2, 1, 1), (8, 3, 2), (16, 5, 3), (64, 1, 40)])
def test_the_sum_of_the_nearest_projections(levels: int, count: int, dimension: int) -> None:
    """Against 200 000 simulated codebooks, to 6 standard errors."""
    generator = np.random.default_rng(4)
    sums = []
    for _ in range(20):
        vectors = generator.normal(size=(10_000, levels, min(dimension, 2)))
        rest = generator.chisquare(dimension - 2, size=(10_000, levels)) if dimension > 2 else 0.0
        projections = vectors[..., 0] / np.sqrt((vectors**2).sum(axis=-1) + rest)
        sums.append(np.sort(projections, axis=1)[:, -count:].sum(axis=1))
    simulated = np.concatenate(sums)
    error = simulated.std() / math.sqrt(simulated.size)
    assert expected_near_sum(levels, count, dimension) == pytest.approx(
        float(simulated.mean()), abs=6.0 * error
    )


def test_a_codeword_is_the_same_alone_and_among_others() -> None:
    codebook = RandomCodebook(seed=9, draw=0, dimension=7)
    x = np.arange(7.0)
    together = codebook.projections(20, x)
    alone = [RandomCodebook(seed=9, draw=0, dimension=7).codeword(index) @ x for index in range(20)]
    assert np.allclose(together, alone, rtol=1e-5, atol=1e-5)
    assert np.isclose(np.linalg.norm(codebook.codeword(3)), 1.0)
    mechanism = design_codebook(dimension=7, levels=20)
    near = mechanism._near(codebook, x)
    assert set(near.tolist()) == set(np.argsort(alone)[-mechanism.num_near :].tolist())


def test_the_design_chooses_as_many_codewords_as_it_needs() -> None:
    levels = [design_codebook(epsilon, 7850).levels for epsilon in (1.0, 4.0, 8.0)]
    assert levels == [256, 512, 4096]
    small = design_codebook(4.0)
    assert small.for_dimension(7850).levels == 512
    assert design_codebook(4.0, bits=6).for_dimension(7850).levels == 64


def test_far_fewer_bits_than_a_coordinate_each() -> None:
    mechanism = design_codebook(4.0, 10_000, bits=9)
    x = np.full(10_000, 0.01)
    assert mechanism.encode(x).size == mechanism.message_size == 64 + 9
    assert mechanism.decode(mechanism.encode(x)).shape == (10_000,)


@pytest.mark.parametrize("levels", [0, 1, 65_537])
def test_codebooks_that_cannot_be_are_refused(levels: int) -> None:
    with pytest.raises(InvalidSpecError, match="levels"):
        design_codebook(levels=levels)


def test_codebooks_that_take_clients_too_long_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match=r"levels: 65536 codewords of 1000000 .* lower levels"):
        design_codebook(dimension=10**6, levels=65_536)
    largest = design_codebook(dimension=1 << 18, levels=65_536)
    with pytest.raises(InvalidSpecError, match="encode fewer coordinates"):
        largest.for_dimension((1 << 18) + 1)
    # What a server sends is checked as well.
    forged_size = forged(design_codebook(levels=65_536), dimension=10**6)
    with pytest.raises(CertificationError, match="lower levels"):
        pq.Mechanism.from_bytes(forged_size)


def test_an_index_outside_the_codebook_is_refused() -> None:
    mechanism = design_codebook(levels=5)
    with pytest.raises(CodeOverflowError, match=r"index 7 is outside 0\.\.4"):
        mechanism.decode(np.array([0] * 64 + [1, 1, 1], dtype=np.uint8))


def test_an_epsilon_that_64_bits_cannot_tell_from_0_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="raise epsilon"):
        near_weight(1e-30)
