"""Bin search: the figures to reach, on the lattice and off it; determinism; caps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import fl_privquant as pq
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.optimize.bin_search import BinSearch
from fl_privquant.optimize.metric_privacy import min_outer_value


def best(**parameters: object) -> pq.Mechanism:
    return pq.design("optm", family="free", **parameters)


@pytest.mark.parametrize(("epsilon", "bound"), [(0.5, 16.14), (1.0, 4.065), (1.5, 1.635), (3.0, 0.299)])
def test_two_bits_on_a_lattice(epsilon: float, bound: float) -> None:
    mechanism = best(epsilon=epsilon, bits=2, max_code=7)
    assert mechanism.epsilon <= epsilon
    assert mechanism.codes.max() <= 7
    assert mechanism.mse() <= bound


@pytest.mark.parametrize(("epsilon", "bound"), [(0.5, 16.06), (1.0, 3.92), (1.5, 1.58), (3.0, 0.275)])
def test_three_bits_off_the_lattice(epsilon: float, bound: float) -> None:
    mechanism = best(epsilon=epsilon, bits=3, lattice=False)
    assert mechanism.epsilon <= epsilon
    assert mechanism.mse() <= bound


@pytest.mark.parametrize(("epsilon", "bound"), [(0.5, 3.56), (1.0, 1.61), (1.5, 0.985)])
def test_absolute_error_with_the_default_cap(epsilon: float, bound: float) -> None:
    mechanism = best(epsilon=epsilon, bits=2, objective="mae", lattice=False)
    assert mechanism.epsilon <= epsilon
    assert mechanism.mae() <= bound
    assert mechanism.values[-1] <= 4 * min_outer_value(epsilon) * (1 + 1e-5)


@pytest.mark.parametrize(("sigma", "bound"), [(0.1, 1.45), (0.2, 1.48), (0.3, 1.51)])
def test_truncated_gaussians(sigma: float, bound: float) -> None:
    density = stats.truncnorm(-1.5 / sigma, 0.5 / sigma, 0.5, sigma)
    mechanism = best(epsilon=1.0, bits=2, objective="mae", lattice=False, density=density)
    assert mechanism.epsilon <= 1.0
    assert mechanism.mae(density) <= bound


@pytest.mark.parametrize("objective", ["mae", "mse"])
@pytest.mark.parametrize("levels", [2, 3, 5, 6, 8, 11, 16])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_any_number_of_levels_is_designed_for_either_objective(
    epsilon: float, levels: int, objective: str
) -> None:
    """For the absolute error the inner values shared codes, no lattice was left, and the search crashed."""
    mechanism = best(epsilon=epsilon, levels=levels, objective=objective)
    assert mechanism.epsilon <= epsilon
    assert mechanism.num_levels == levels
    assert mechanism.codes[-1] <= 2 * levels - 1
    assert mechanism.values == pytest.approx(-mechanism.values[::-1])
    error = mechanism.mae() if objective == "mae" else mechanism.mse()
    one_bit = pq.design("one_bit", epsilon=epsilon)
    assert error <= (one_bit.mae() if objective == "mae" else one_bit.mse()) * (1 + 1e-5)


@pytest.mark.parametrize("family", ["paired", "independent"])
@pytest.mark.parametrize("objective", ["mae", "mse"])
def test_other_families_are_designed_for_either_objective(family: str, objective: str) -> None:
    mechanism = pq.design("optm", epsilon=2.0, levels=7, family=family, objective=objective)
    assert mechanism.epsilon <= 2.0
    assert mechanism.num_levels == 7


def test_many_levels_are_searched_by_scale_and_bend() -> None:
    """At epsilon 1 and 8 bits no lattice was left either."""
    mechanism = best(epsilon=1.0, levels=80)
    assert mechanism.num_levels == 80
    assert mechanism.mse() < best(epsilon=1.0, levels=16).mse()


@pytest.mark.parametrize(
    ("family", "bits", "most", "remedy"),
    [
        ("free", 10, 256, "more hardly lower the error"),
        ("paired", 6, 32, "or use family='free'"),
        ("independent", 5, 16, "or use family='free'"),
    ],
)
def test_more_levels_than_can_be_designed_are_refused_at_once(
    family: str, bits: int, most: int, remedy: str
) -> None:
    """10 bits took 9 minutes without a word, and 26 GiB."""
    with pytest.raises(InvalidSpecError) as raised:
        pq.design("optm", epsilon=1.0, bits=bits, family=family)
    assert f"levels: {2**bits} is above {most}, the most with family={family!r}" in str(raised.value)
    assert str(raised.value).endswith(f"lower levels or bits, {remedy}")


def test_asymmetric_lattice_follows_the_samples() -> None:
    samples = np.random.default_rng(0).normal(0.6, 0.1, 400)
    mechanism = best(epsilon=2.0, bits=2, density=samples, max_code=15)
    assert mechanism.codes[-1] <= 15
    uniform = best(epsilon=2.0, bits=2, max_code=15)
    assert mechanism.mse(samples) < uniform.mse(samples)


def test_searches_are_deterministic() -> None:
    first, second = (best(epsilon=1.7, levels=5, cache=False).to_bytes() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("family", ["paired", "independent"])
def test_other_families_search_too(family: str) -> None:
    mechanism = pq.design("optm", epsilon=1.0, bits=2, family=family, objective="mae")
    assert mechanism.epsilon <= 1.0
    paper = pq.design("optm", epsilon=1.0, bins=(-3, -0.5, 0.5, 3), family=family, objective="mae")
    assert mechanism.mae() < paper.mae()


def test_a_cap_below_what_is_needed_is_infeasible() -> None:
    with pytest.raises(InfeasibleDesignError, match="max_value"):
        best(epsilon=1.0, bits=2, max_value=2.0)
    capped = best(epsilon=1.0, bits=2, objective="mae", max_value=3.0)
    assert capped.values[-1] <= 3.0 + 1e-9


@pytest.mark.parametrize("epsilon", [1e-4, 1e-5])
@pytest.mark.parametrize("family", ["free", "paired"])
def test_an_epsilon_too_small_for_a_search_is_told_what_helps(epsilon: float, family: str) -> None:
    """The advice was to use the family that the design had already, or to widen bins that nobody gave."""
    with pytest.raises(InfeasibleDesignError) as raised:
        pq.design("optm", epsilon=epsilon, bits=2, family=family)
    text = str(raised.value)
    assert f"an epsilon of {epsilon:g} is too small for a search of 4 levels" in text
    assert "family" not in text
    # What is advised works.
    assert "raise epsilon (0.01 is enough for any number of levels), or take 'one_bit'" in text
    assert pq.design("optm", epsilon=0.01, bits=2, family=family).epsilon <= 0.01
    assert pq.design("one_bit", epsilon=epsilon).epsilon <= epsilon


def test_only_families_with_more_error_are_advised_to_use_another() -> None:
    def nothing(values: Any) -> Any:
        raise InfeasibleDesignError("no distribution")

    for advice in ("", ", or use family='free'"):
        with pytest.raises(InfeasibleDesignError, match=f"raise epsilon, levels or max_value{advice}$"):
            BinSearch(nothing, levels=4, least=2.0, most=8.0, advice=advice).continuous()
