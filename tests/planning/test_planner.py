"""The planner: what it lists meets the target, and little more private designs would not be needed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from scipy.stats import norm

import fl_privquant as pq
from fl_privquant.accounting import RunRequirements, Unit, UpdateNorms
from fl_privquant.distributions.input_density import as_density
from fl_privquant.errors import InfeasibleDesignError, InvalidSpecError
from fl_privquant.mechanisms.registry import get_entry
from fl_privquant.optimize.sums.coordinate_clip import rescale_to_unit_gain
from fl_privquant.planning import plan, run_statement
from simulations.runner.central import calibrate_sum_noise

CHEAP = ("one_bit", "discrete_gaussian", "pbm")


def test_lists_designs_that_meet_the_target() -> None:
    requirements = RunRequirements(num_clients=200, dimension=650, rounds=30, epsilon=8.0)
    found = plan(requirements, CHEAP)
    assert {each.name for each in found.designs} == set(CHEAP)
    errors = [each.mean_squared_error for each in found.designs]
    assert errors == sorted(errors)
    assert found.advice is None
    for each in found.designs:
        assert each.statement.epsilon <= 8.0
        assert each.statement.unit is Unit.TOTAL
        assert str(each.statement.view) == "aggregate of 200"
        assert run_statement(requirements, each.mechanism).epsilon == each.statement.epsilon
        assert each.mean_squared_error == each.mechanism.mse() / 200
        assert each.bytes_per_round == -(-each.mechanism.sum_ring(200, 650).bits * 650 // 8)
    one_bit = next(each for each in found.designs if each.name == "one_bit")
    looser = pq.design("one_bit", epsilon=one_bit.mechanism.epsilon * 1.03)
    assert run_statement(requirements, looser).epsilon > 8.0


def test_views_units_and_adversaries_matter() -> None:
    requirements = RunRequirements(num_clients=100, dimension=100, rounds=10, epsilon=4.0)
    per_coordinate = [
        plan(each, ("one_bit",)).designs[0].mechanism.epsilon
        for each in (
            dataclasses.replace(requirements, in_sum=False),
            dataclasses.replace(requirements, corrupt=60, dropped=20),
            requirements,
            dataclasses.replace(requirements, unit=Unit.ROUND),
            dataclasses.replace(requirements, unit=Unit.COORDINATE),
        )
    ]
    assert per_coordinate == sorted(per_coordinate)


def test_local_mechanisms_need_no_sum() -> None:
    requirements = RunRequirements(num_clients=10, dimension=20, rounds=1, epsilon=4.0, in_sum=False)
    found = plan(requirements, ("sqkr", "one_bit"))
    assert {each.name for each in found.designs} == {"sqkr", "one_bit"}
    summed = plan(dataclasses.replace(requirements, in_sum=True), ("sqkr",))
    assert "sqkr" in summed.missing


@pytest.mark.parametrize("name", ["laplace", "gaussian", "privunit"])
def test_a_mechanism_for_real_numbers_meets_no_target(name: str) -> None:
    requirements = RunRequirements(num_clients=10, dimension=20, rounds=1, epsilon=4.0, in_sum=False)
    found = plan(requirements, (name,))
    assert not found.designs
    assert "its ε holds for exact real numbers only" in found.missing[name]
    # Another target would not help.
    assert found.advice is None


def test_vector_mechanisms_are_planned_by_the_round() -> None:
    requirements = RunRequirements(num_clients=100, dimension=400, rounds=5, epsilon=20.0, in_sum=False)
    names = ("cldp_linf", "cldp_l2", "vqsgd_private", "one_bit")
    found = {each.name: each for each in plan(requirements, names).designs}
    assert set(found) == set(names)
    for name in names[:3]:
        each = found[name]
        assert each.mechanism.unit == "client round"
        assert run_statement(requirements, each.mechanism).epsilon == each.statement.epsilon <= 20.0
        # Twenty for five rounds, and a little more than four for each: a delta is allowed.
        assert 3.9 < each.mechanism.epsilon < 8.0
        assert each.mechanism.repeats > 1
        assert each.bytes_per_round < found["one_bit"].bytes_per_round
    # Errors are in units of the coordinate clip, whatever ball the mechanism has.
    assert found["cldp_linf"].mean_squared_error == found["cldp_linf"].mechanism.mse() / 100
    assert found["cldp_l2"].clip == "L2"
    assert found["cldp_l2"].mean_squared_error == pytest.approx(found["cldp_l2"].mechanism.mse() * 4.0)
    smaller = plan(dataclasses.replace(requirements, norms=UpdateNorms(l2=2.0)), ("cldp_l2",)).designs[0]
    assert smaller.mean_squared_error == pytest.approx(smaller.mechanism.mse() * 0.04)
    # Where no coordinate can be released often enough, a whole round still can.
    tight = RunRequirements(
        num_clients=100, dimension=10_000, rounds=1, epsilon=1.0, delta=1e-9, in_sum=False
    )
    planned = plan(tight, ("one_bit", "cldp_linf"))
    assert [each.name for each in planned.designs] == ["cldp_linf"]
    assert "one_bit" in planned.missing
    assert planned.advice is None


def test_says_what_would_meet_an_impossible_target() -> None:
    requirements = RunRequirements(num_clients=20, dimension=20_000, rounds=50, epsilon=0.5)
    found = plan(requirements, ("one_bit",))
    assert not found.designs
    assert found.advice is not None
    mechanism = pq.design("one_bit", epsilon=0.01)
    assert found.advice.least.epsilon == pytest.approx(
        run_statement(requirements, mechanism).epsilon, rel=0.02
    )
    assert found.advice.num_clients is not None
    more = dataclasses.replace(requirements, num_clients=found.advice.num_clients)
    assert plan(more, ("one_bit",)).designs
    assert "at least" in str(found.advice)
    easier = dataclasses.replace(requirements, dimension=200, epsilon=0.6)
    advised = plan(easier, ("one_bit",)).advice
    assert advised is not None
    assert advised.rounds is not None
    assert plan(dataclasses.replace(easier, rounds=advised.rounds), ("one_bit",)).designs


SUMS = (
    "rounded_gaussian",
    "pbm",
    "one_bit",
    "skellam",
    "discrete_gaussian",
    "discrete_laplace",
)


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_clients": 60, "dimension": 650, "rounds": 20, "epsilon": 6.0},
        {"num_clients": 30, "dimension": 40, "rounds": 3, "epsilon": 2.0, "corrupt": 3, "dropped": 4},
        {"num_clients": 40, "dimension": 300, "rounds": 9, "epsilon": 1.0, "unit": Unit.ROUND},
    ],
)
def test_every_mechanism_for_sums_proposes_a_design_with_a_clip_of_its_own(sizes: dict[str, Any]) -> None:
    requirements = RunRequirements(**sizes, own_clips=True)
    found = plan(requirements)
    assert {each.name for each in found.designs} == set(SUMS)
    assert not found.missing
    ranks = [each.rank for each in found.designs]
    assert ranks == sorted(ranks)
    for each in found.designs:
        assert each.norm_ratio is not None
        assert each.ratio_to_central is not None
        # No clip takes more than a tenth of the signal, and the least error of all is that of the ranking.
        assert math.sqrt(requirements.dimension) / each.norm_ratio >= 1.65
        clipped = dataclasses.replace(requirements, norms=UpdateNorms(l2=each.norm_ratio), own_clips=False)
        again = run_statement(clipped, each.mechanism)
        assert again.epsilon == each.statement.epsilon <= requirements.epsilon
        spread = math.sqrt(requirements.dimension) / each.norm_ratio
        inputs = as_density(norm(scale=1.0 / spread))
        survivors = requirements.num_clients - requirements.dropped
        noise = spread**2 * each.mechanism.mse(inputs)
        error = rescale_to_unit_gain(noise, spread, survivors) / survivors / spread**2
        assert each.mean_squared_error == pytest.approx(error, rel=1e-9)
    ratios = [each.ratio_to_central for each in found.designs]
    assert ratios == sorted(ratios)
    assert ratios[0] > 1.0


def test_the_budget_of_a_proposal_is_used() -> None:
    """All but a per cent of epsilon where clients are many; a design for 2 % less has more error."""
    requirements = RunRequirements(num_clients=100, dimension=300, rounds=4, epsilon=6.0, own_clips=True)
    for name in ("rounded_gaussian", "pbm", "skellam"):
        (best,) = plan(requirements, (name,)).designs
        assert 0.99 * 6.0 < best.statement.epsilon <= 6.0
        (tighter,) = plan(dataclasses.replace(requirements, epsilon=0.98 * 6.0), (name,)).designs
        assert tighter.rank > best.rank


def test_a_central_gaussian_is_what_errors_are_over() -> None:
    """By the noise that a trusted server adds to the sum of all updates that are averaged."""
    requirements = RunRequirements(
        num_clients=50, dimension=200, rounds=4, epsilon=3.0, dropped=5, own_clips=True
    )
    (found,) = plan(requirements, ("pbm",)).designs
    noise = calibrate_sum_noise(math.sqrt(200), 4, 3.0, 1e-5) / 45
    assert found.ratio_to_central == pytest.approx(found.rank * 200 / noise**2, rel=1e-6)


def test_integer_noise_takes_the_bits_that_it_needs_and_no_more() -> None:
    requirements = RunRequirements(num_clients=100, dimension=650, rounds=20, epsilon=6.0, own_clips=True)
    (few,) = plan(requirements, ("skellam",)).designs
    (many,) = plan(dataclasses.replace(requirements, bits=16), ("skellam",)).designs
    assert few.ratio_to_central is not None
    assert many.ratio_to_central is not None
    assert few.bytes_per_round < many.bytes_per_round
    assert many.ratio_to_central < few.ratio_to_central < 1.012 * many.ratio_to_central
    fixed = dataclasses.replace(requirements, parameters=(("levels", 5),))
    assert plan(fixed, ("skellam",)).designs[0].mechanism.levels == 5


def test_without_a_proposal_an_epsilon_of_a_coordinate_is_searched() -> None:
    """One honest client: nobody hides it in the sum, but its own randomness does."""
    requirements = RunRequirements(
        num_clients=2, corrupt=1, dimension=5, rounds=1, epsilon=12.0, norms=UpdateNorms(l2=1.0)
    )
    with pytest.raises(InfeasibleDesignError):
        get_entry("pbm").spec.propose(requirements, requirements.epsilon)
    (found,) = plan(requirements, ("pbm",)).designs
    assert found.statement.epsilon <= 12.0


@pytest.mark.parametrize(
    "changes", [{"rounds": 0}, {"epsilon": 0.0}, {"delta": 1.0}, {"corrupt": 10}, {"dropped": -1}]
)
def test_impossible_wishes(changes: dict[str, float]) -> None:
    sizes = {"num_clients": 10, "dimension": 5, "rounds": 2, "epsilon": 1.0} | changes
    with pytest.raises(InvalidSpecError):
        RunRequirements(**sizes)  # type: ignore[arg-type]
