"""The linear programs: the figures to reach, containment of the families, symmetry, cross-checks."""

from __future__ import annotations

import itertools

import numpy as np
import pulp
import pytest
from scipy import stats

import fl_privquant as pq
from fl_privquant.distributions.input_density import Density, SampleDensity, UniformDensity, as_density
from fl_privquant.distributions.output_distribution import OutputDistribution
from fl_privquant.errors import InfeasibleDesignError
from fl_privquant.mechanisms.tables.rqm import rqm_distribution
from fl_privquant.optimize.metric_privacy import min_outer_value
from fl_privquant.optimize.optm.bin_selection import intervals
from fl_privquant.optimize.optm.free import design_free, place_knots
from fl_privquant.optimize.optm.independent import design_independent
from fl_privquant.optimize.optm.monotone import design_monotone
from fl_privquant.optimize.optm.paired import design_paired

UNIFORM = UniformDensity()
PAPER = {0.5: [-6.0, -0.4, 0.4, 6.0], 1.0: [-3.0, -0.5, 0.5, 3.0], 1.5: [-3.0, -0.5, 0.5, 3.0]}
GRID = np.linspace(-1.0, 1.0, 51)


@pytest.mark.parametrize(
    ("epsilon", "bound", "printed"), [(0.5, 3.90, 3.904), (1.0, 1.880, 1.882), (1.5, 1.175, 1.179)]
)
def test_independent_reproduces_table_1(epsilon: float, bound: float, printed: float) -> None:
    distribution, _ = design_independent(np.array(PAPER[epsilon]), epsilon, UNIFORM, 1)
    assert distribution.epsilon <= epsilon * (1 + 1e-9)
    assert distribution.mae() <= bound
    assert distribution.error_at(GRID).mean() == pytest.approx(printed, abs=0.003)


@pytest.mark.parametrize(
    ("bins", "sigma", "reachable"),
    [
        ((-4.0, 0.2, 0.6, 4.0), 0.1, 1.632),
        ((-4.0, 0.2, 0.6, 4.0), 0.2, 1.686),
        ((-4.0, -0.2, 0.6, 4.0), 0.3, 1.762),
    ],
)
def test_independent_minimizes_the_absolute_error_itself(
    bins: tuple[float, ...], sigma: float, reachable: float
) -> None:
    """It minimized the paper's bound of it, and had 1.655, 1.690 and 1.783 on the bins of table 2."""
    density = as_density(stats.truncnorm(-1.5 / sigma, 0.5 / sigma, 0.5, sigma))
    distribution, _ = design_independent(np.array(bins), 1.0, density, 1)
    assert distribution.epsilon <= 1.0 + 1e-9
    assert distribution.mae(density) == pytest.approx(reachable, abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "paired_bound", "free_bound"), [(0.5, 3.835, 3.680), (1.0, 1.854, 1.702), (1.5, 1.169, 1.035)]
)
def test_paired_and_free_on_the_papers_bins(epsilon: float, paired_bound: float, free_bound: float) -> None:
    bins = np.array(PAPER[epsilon])
    paired = design_paired(bins, epsilon, UNIFORM, 1)
    free = design_free(bins, epsilon, UNIFORM, 1, place_knots(bins, 33)).distribution
    for distribution, bound in ((paired, paired_bound), (free, free_bound)):
        assert distribution.epsilon <= epsilon * (1 + 1e-7)
        assert distribution.max_bias < 1e-8
        assert distribution.mae() <= bound


@pytest.mark.parametrize(
    "bins", [[-2.5, 0.0, 2.5], [-3.0, -1.4, -0.3, 0.8, 2.6], [-2.4, -0.7, 0.7, 2.4], [-2.2, 2.2]]
)
@pytest.mark.parametrize("power", [1, 2])
def test_each_family_contains_the_one_before(bins: list[float], power: int) -> None:
    """Odd and asymmetric bins too: independent >= paired >= free in error."""
    values, epsilon = np.array(bins), 1.3
    independent, _ = design_independent(values, epsilon, UNIFORM, power)
    paired = design_paired(values, epsilon, UNIFORM, power)
    free = design_free(values, epsilon, UNIFORM, power, place_knots(values, 65)).distribution
    errors = [
        distribution.mae() if power == 1 else distribution.mse()
        for distribution in (independent, paired, free)
    ]
    for distribution in (independent, paired, free):
        assert distribution.epsilon <= epsilon * (1 + 1e-7)
        assert distribution.max_bias < 1e-8
    assert errors[0] >= errors[1] * (1 - 1e-7)
    assert errors[1] >= errors[2] * (1 - 1e-3)


@pytest.mark.parametrize("levels", [2, 3, 4, 7, 8])
def test_symmetry_halves_the_program_and_not_the_optimum(levels: int) -> None:
    values = np.linspace(-2.8, 2.8, levels)
    knots = place_knots(values, 9)
    # The same density as samples is not known to be symmetric: the whole program is solved.
    nodes, weights = UNIFORM.quadrature(np.unique(np.concatenate([knots, values[np.abs(values) < 1]])))
    counts = np.rint(weights / weights.min() * 24).astype(int)
    whole = SampleDensity(np.repeat(nodes, counts))
    assert not whole.symmetric

    mirrored_inputs = SampleDensity(whole.samples, symmetric=True)
    for power in (1, 2):
        full = design_free(values, 1.0, whole, power, knots)
        half = design_free(values, 1.0, mirrored_inputs, power, knots)
        assert half.objective == pytest.approx(full.objective, rel=1e-7)
        assert half.distribution.rows.shape[1] == levels
        mirrored = half.distribution.pmf(-GRID)[:, ::-1]
        assert mirrored == pytest.approx(half.distribution.pmf(GRID), abs=1e-9)
    assert design_paired(values, 1.0, mirrored_inputs, 1).mae(whole) == pytest.approx(
        design_paired(values, 1.0, whole, 1).mae(whole), rel=1e-6
    )


@pytest.mark.parametrize("power", [1, 2])
def test_solvers_agree(power: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS' simplex, its interior point method and CBC find the same optimum."""
    values = np.array([-2.6, -0.9, 0.1, 2.9])
    knots = place_knots(values, 17)
    found = [
        design_free(values, 1.0, UNIFORM, power, knots, method).objective for method in ("simplex", "ipm")
    ]
    paired = [design_paired(values, 1.0, UNIFORM, power)]
    options = ["primalT 1e-9", "dualT 1e-9"]
    cbc = pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path, msg=False, options=options)
    monkeypatch.setattr(pulp, "HiGHS", lambda **_: cbc)
    found.append(design_free(values, 1.0, UNIFORM, power, knots).objective)
    paired.append(design_paired(values, 1.0, UNIFORM, power))
    assert found == pytest.approx([found[0]] * 3, rel=1e-7)
    assert found[2] != found[0]
    assert paired[0].mse() == pytest.approx(paired[1].mse(), rel=1e-5)


def test_the_slope_of_the_optimum_is_right() -> None:
    values, knots, step = np.array([-2.9, -1.0, 0.3, 2.6]), np.linspace(-1, 1, 9), 1e-5
    optimum = design_free(values, 1.1, UNIFORM, 2, knots)
    for i in range(4):
        shift = step * np.eye(4)[i]
        above, below = (design_free(values + s, 1.1, UNIFORM, 2, knots).objective for s in (shift, -shift))
        assert optimum.gradient[i] == pytest.approx((above - below) / (2 * step), abs=1e-5)


def test_more_knots_never_hurt_by_much() -> None:
    values = np.array([-2.455, -0.105, 0.105, 2.455])
    errors = [
        design_free(values, 1.0, UNIFORM, 2, np.linspace(-1, 1, count)).objective for count in (9, 17, 65)
    ]
    assert errors[0] >= errors[1] >= errors[2] >= errors[0] * 0.999


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(
    ("epsilon", "levels"), [(0.5, 4), (1.0, 8), (2.0, 5), (4.0, 8), (6.0, 12), (6.0, 16), (8.0, 16)]
)
def test_designs_are_within_half_a_percent_of_the_program_on_the_same_values(
    epsilon: float, levels: int, power: int
) -> None:
    """With the knots that designs had, they lost up to 6 %."""
    objective = {1: "mae", 2: "mse"}[power]
    mechanism = pq.design("optm", epsilon=epsilon, levels=levels, objective=objective)
    error = mechanism.mae() if power == 1 else mechanism.mse()
    knots = place_knots(mechanism.values, 601)
    assert error <= 1.005 * design_free(mechanism.values, epsilon, UNIFORM, power, knots).objective


@pytest.mark.parametrize("levels", [5, 8])
@pytest.mark.parametrize(
    "density", [UNIFORM, as_density(stats.truncnorm(-6, 2, 0.5, 0.25))], ids=["uniform", "normal"]
)
def test_distributions_that_bend_where_they_should_lose_nothing(levels: int, density: Density) -> None:
    """They have the floors of the program, its privacy and its means, and no more error, at any knots."""
    values, epsilon = np.linspace(-1.2, 1.2, levels) + 0.01 * np.arange(levels), 4.0
    for power in (1, 2):
        optimum = design_free(values, epsilon, density, power, place_knots(values, 9))
        distribution = optimum.concentrated
        assert distribution.epsilon <= epsilon * (1 + 1e-9)
        assert distribution.max_bias < 1e-8
        assert distribution.starts.size <= 2 * levels
        assert distribution.error(power, density) < optimum.objective * (1 - 1e-3)
        # The rest of the way to the optimum would take other floors.
        fine = design_free(values, epsilon, density, power, place_knots(values, 201)).objective
        assert optimum.objective > distribution.error(power, density) >= fine * (1 - 1e-3)


@pytest.mark.parametrize("design", ["free", "paired", "independent"])
def test_bins_that_do_not_reach_are_infeasible_and_say_what_would_do(design: str) -> None:
    least = min_outer_value(1.0)
    values = np.array([-least * 0.999, 0.0, least * 2])
    solve = {
        "free": lambda v: design_free(v, 1.0, UNIFORM, 1, place_knots(v, 9)),
        "paired": lambda v: design_paired(v, 1.0, UNIFORM, 1),
        "independent": lambda v: design_independent(v, 1.0, UNIFORM, 1),
    }[design]
    with pytest.raises(InfeasibleDesignError, match=r"2\.16395.*widen the bins or raise epsilon"):
        solve(values)
    values[0] = -least * (1.3 if design == "independent" else 1.0001)
    solve(values)


@pytest.mark.parametrize("edge", [2.17, 2.2, 2.3])
def test_independent_next_to_the_min_outer_bin(edge: float) -> None:
    """There hardly anything but the outer bins can be selected; the appendix has such bins (±2.2 at 1)."""
    values = np.array([-edge, -0.4, 0.4, edge])
    distribution, _ = design_independent(values, 1.0, UNIFORM, 1)
    assert distribution.epsilon <= 1.0 + 1e-9
    # What is certain to be private is the two-point mechanism on the outer bins.
    assert (
        distribution.mae()
        < OutputDistribution.from_knots(values[[0, 3]], [-1.0, 1.0], _two_points(edge)).mae()
    )
    assert 0.0 < distribution.rows[:, 1:3].max() < 0.1


def _two_points(edge: float) -> list[list[float]]:
    low, high = 0.5 - 0.5 / edge, 0.5 + 0.5 / edge
    return [[high, low], [low, high]]


def test_asymmetric_independent_improves_on_the_authors_program() -> None:
    density = as_density(stats.norm(0.5, 0.1))
    distribution, _ = design_independent(np.array([-4.0, 0.2, 0.6, 4.0]), 1.0, density, 1)
    assert distribution.epsilon <= 1 + 1e-9
    assert distribution.mae(density) <= 1.66


def test_free_on_truncated_gaussians() -> None:
    bins = np.array([-4.0, 0.2, 0.6, 4.0])
    for sigma, bound in ((0.1, 1.449), (0.2, 1.489), (0.3, 1.531)):
        density = as_density(stats.truncnorm(-1.5 / sigma, 0.5 / sigma, 0.5, sigma))
        distribution = design_free(bins, 1.0, density, 1, place_knots(bins, 33)).distribution
        assert distribution.mae(density) <= bound


def test_independent_beats_the_rqm_it_starts_from() -> None:
    bins = np.linspace(-3.0, 3.0, 6)
    start = rqm_distribution(bins, 0.3)
    distribution, _ = design_independent(bins, start.epsilon, UNIFORM, 1)
    assert distribution.epsilon <= start.epsilon * (1 + 1e-9)
    assert distribution.mae() < start.mae()


class TestConstraint2:
    def test_uniform_bins(self) -> None:
        distribution = design_monotone(np.linspace(-3.0, 3.0, 4), 2.0, UNIFORM, 1)
        assert distribution.epsilon <= 2.0
        assert distribution.mae() == pytest.approx(1.556, abs=0.001)

    @pytest.mark.parametrize("bins", [*PAPER.values(), [-2.2, -0.4, 0.4, 2.2]])
    def test_infeasible_on_every_bin_set_of_the_paper(self, bins: list[float]) -> None:
        with pytest.raises(InfeasibleDesignError, match=r"outer gap .* exceeds the next one"):
            design_monotone(np.array(bins), 1.5, UNIFORM, 1)

    def test_other_reasons(self) -> None:
        with pytest.raises(InfeasibleDesignError, match="symmetric"):
            design_monotone(np.array([-3.0, 0.0, 0.5, 3.0]), 2.0, UNIFORM, 1)
        with pytest.raises(InfeasibleDesignError, match="two bins inside"):
            design_monotone(np.array([-3.0, -1.5, 1.5, 3.0]), 2.0, UNIFORM, 1)


def test_intervals_cover_the_inputs() -> None:
    for values in ([-1.0, 1.0], [-3.0, -1.0, 1.0, 3.0], [-2.0, -1.0 + 1e-9, 0.2, 1.0 - 1e-9, 2.0]):
        pieces = intervals(np.array(values))
        assert pieces[0].start == -1.0
        assert pieces[-1].end == 1.0
        assert all(left.end == right.start for left, right in itertools.pairwise(pieces))
