"""SQKR, MMRC, MRC and CLDP: losses by enumeration, errors against the optimum; and no bias of any."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError
from fl_privquant.mechanisms.vectors.mrc import inner_exponent
from fl_privquant.mechanisms.vectors.sphere import privunit_squared_error


def unit_error(name: str, epsilon: float, dimension: int = 7850, **parameters: Any) -> float:
    """Squared error of a unit vector over that of the optimum."""
    mechanism = pq.design(name, epsilon=epsilon, dimension=dimension, **parameters)
    return float(
        mechanism.squared_error(np.eye(1, dimension)[0]) / privunit_squared_error(epsilon, dimension)
    )


@pytest.mark.parametrize("levels", [2, 3, 7])
@pytest.mark.parametrize("epsilon", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("name", ["mmrc", "mrc"])
def test_the_loss_covers_every_pair_of_sets_of_near_codewords(name: str, epsilon: float, levels: int) -> None:
    """Every set of codewords inside the cap for one update and for another, in exact fractions."""
    mechanism = pq.design(name, epsilon=epsilon, dimension=4, levels=levels)
    chances = []
    for near in itertools.product((True, False), repeat=levels):
        inside, outside = mechanism._weights_among(sum(near))
        weights = [inside if is_near else outside for is_near in near]
        chances.append(Fraction(weights[0], sum(weights)))
    worst = max(chances) / min(chances)
    with localcontext() as context:
        context.prec = 60
        loss = (Decimal(worst.numerator) / Decimal(worst.denominator)).ln()
    assert loss <= Decimal(mechanism.epsilon) <= Decimal(epsilon)
    if name == "mrc":
        assert float(loss) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "ratio"), [(1.0, 1.03), (2.0, 1.03), (4.0, 1.05), (8.0, 1.28)])
def test_mmrc_has_the_error_of_its_authors_modified_mechanism(epsilon: float, ratio: float) -> None:
    """Over the optimum, with 2^12 codewords, computed by others; plain MRC has up to four times that."""
    assert unit_error("mmrc", epsilon, levels=4096) == pytest.approx(ratio, abs=0.01)
    assert 2.5 < unit_error("mrc", epsilon, levels=4096) / unit_error("mmrc", epsilon, levels=4096) < 4.1
    chosen = pq.design("mmrc", epsilon=epsilon, dimension=7850)
    assert chosen.levels <= 4096
    assert unit_error("mmrc", epsilon) <= 1.05 * unit_error("mmrc", epsilon, levels=4096)


def test_what_is_left_of_plain_mrc_after_honest_accounting() -> None:
    """Its weights have half of epsilon with many codewords: about four times the least error."""
    assert inner_exponent(2.0, 65_536) == pytest.approx(1.0, abs=1e-3)
    assert inner_exponent(2.0, 2) == pytest.approx(2.0)
    assert 3.0 < unit_error("mrc", 8.0) < unit_error("mrc", 1.0) < 4.1
    best = pq.design("mrc", epsilon=4.0, dimension=500)
    for levels in (2, 8, 64, 1024):
        other = pq.design("mrc", epsilon=4.0, dimension=500, levels=levels)
        assert other.output_norm >= best.output_norm * (1.0 - 1e-9)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_sqkr_takes_the_best_number_of_signs(epsilon: float) -> None:
    best = pq.design("sqkr", epsilon=epsilon, dimension=50)
    for sampled in (1, 2, 3, 5, 8, 12):
        other = pq.design("sqkr", epsilon=epsilon, dimension=50, sampled=sampled)
        assert other.output_norm >= best.output_norm * (1.0 - 1e-9)
    assert unit_error("sqkr", epsilon) < {1.0: 1.17, 4.0: 1.53, 8.0: 1.75}[epsilon]
    # The answers of randomized response are all sign patterns, so their sum is 0.
    assert best.num_answers == 2**best.sampled


@pytest.mark.parametrize(("epsilon", "most"), [(1.0, 1.17), (2.0, 1.68), (4.0, 3.12), (8.0, 5.1)])
def test_cldp_takes_the_best_number_of_draws(epsilon: float, most: float) -> None:
    assert unit_error("cldp_l2", epsilon) <= most
    for repeats in (1, 2, 3, 4, 6, 10):
        assert unit_error("cldp_l2", epsilon, repeats=repeats) >= unit_error("cldp_l2", epsilon) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("sqkr", {}),
        ("sqkr", {"sampled": 3, "repeats": 2}),
        ("mmrc", {"levels": 64}),
        ("mmrc", {"levels": 12}),
        ("mrc", {}),
        ("shared_codebook", {"bits": 4}),
        ("privunit", {}),
        ("privunit", {"projected": 2}),
        ("privunit", {"repeats": 3}),
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [0.0, 0.5, 1.0])
def test_estimates_are_unbiased_and_have_the_stated_error(
    name: str, parameters: dict[str, int], length: float
) -> None:
    """3 coordinates, 4000 draws, to 6 standard errors; without the constant the bias is noticed."""
    mechanism = pq.design(name, epsilon=3.0, dimension=3, **parameters)
    x = length * np.array([2.0, -1.0, 2.0]) / 3.0
    stream = pq.RandomStream.seeded(7)
    estimates = np.array([mechanism.decode(mechanism.encode(x, rng=stream)) for _ in range(4000)])
    error = estimates.std(axis=0) / math.sqrt(len(estimates))
    assert np.all(np.abs(estimates.mean(axis=0) - x) < 6.0 * error)
    if length == 1.0:
        assert np.any(np.abs(1.3 * estimates.mean(axis=0) - x) > 6.0 * error)
    squares = ((estimates - x) ** 2).sum(axis=1)
    spread = squares.std() / math.sqrt(len(squares))
    assert mechanism.squared_error(x) == pytest.approx(float(squares.mean()), abs=6.0 * spread + 1e-5)


def test_sizes() -> None:
    assert pq.design("sqkr", epsilon=8.0, dimension=100).message_size == 64 + 8
    assert pq.design("mmrc", epsilon=8.0, dimension=100, levels=128).message_size == 64 + 7
    assert pq.design("sqkr", epsilon=8.0, dimension=100, sampled=5).for_dimension(3).sampled == 3
    assert pq.design("sqkr", epsilon=8.0).for_dimension(100).sampled == 8
    assert pq.design("mrc", epsilon=8.0).for_dimension(100).levels == 128
    assert pq.design("cldp_l2", epsilon=8.0, dimension=100).message_size == 64 + 4
    assert pq.design("cldp_l2", epsilon=8.0).for_dimension(100).message_size == 64 + 4
    assert pq.design("cldp_l2", epsilon=8.0, repeats=2).for_dimension(100).message_size == 64 + 2


@pytest.mark.parametrize("sampled", [0, 25, 4])
def test_signs_that_cannot_be_are_refused(sampled: int) -> None:
    with pytest.raises(InvalidSpecError, match="sampled"):
        pq.design("sqkr", epsilon=1.0, dimension=3, sampled=sampled)
