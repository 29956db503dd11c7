"""The planner: what it lists meets the target, and little more private designs would not be needed."""

from __future__ import annotations

import dataclasses

import pytest

import fl_privquant as pq
from fl_privquant.accounting import Norms, Unit, Wish, plan, run_statement
from fl_privquant.errors import InvalidSpecError

CHEAP = ("one_bit", "discrete_gaussian", "pbm")


def test_lists_designs_that_meet_the_target() -> None:
    wish = Wish(num_clients=200, dimension=650, rounds=30, epsilon=8.0)
    found = plan(wish, CHEAP)
    assert {each.name for each in found.designs} == set(CHEAP)
    errors = [each.mean_squared_error for each in found.designs]
    assert errors == sorted(errors)
    assert found.advice is None
    for each in found.designs:
        assert each.statement.epsilon <= 8.0
        assert each.statement.unit is Unit.TOTAL
        assert each.statement.view == "aggregate of 200"
        assert run_statement(wish, each.mechanism).epsilon == each.statement.epsilon
        assert each.mean_squared_error == each.mechanism.mse() / 200
        assert each.bytes_per_round == -(-each.mechanism.sum_bits(200) * 650 // 8)
    one_bit = next(each for each in found.designs if each.name == "one_bit")
    looser = pq.design("one_bit", epsilon=one_bit.mechanism.epsilon * 1.03)
    assert run_statement(wish, looser).epsilon > 8.0


def test_views_units_and_adversaries_matter() -> None:
    wish = Wish(num_clients=100, dimension=100, rounds=10, epsilon=4.0)
    per_coordinate = [
        plan(each, ("one_bit",)).designs[0].mechanism.epsilon
        for each in (
            dataclasses.replace(wish, in_sum=False),
            dataclasses.replace(wish, corrupt=60, dropped=20),
            wish,
            dataclasses.replace(wish, unit=Unit.ROUND),
            dataclasses.replace(wish, unit=Unit.COORDINATE),
        )
    ]
    assert per_coordinate == sorted(per_coordinate)


def test_local_mechanisms_need_no_sum() -> None:
    wish = Wish(num_clients=10, dimension=20, rounds=1, epsilon=4.0, in_sum=False)
    found = plan(wish, ("gaussian", "one_bit"))
    assert {each.name for each in found.designs} == {"gaussian", "one_bit"}
    summed = plan(dataclasses.replace(wish, in_sum=True), ("gaussian",))
    assert "gaussian" in summed.missing


def test_vector_mechanisms_are_planned_by_the_round() -> None:
    wish = Wish(num_clients=100, dimension=400, rounds=5, epsilon=20.0, in_sum=False)
    names = ("cldp_linf", "cldp_l2", "vqsgd_private", "one_bit")
    found = {each.name: each for each in plan(wish, names).designs}
    assert set(found) == set(names)
    for name in names[:3]:
        each = found[name]
        assert each.mechanism.unit == "client round"
        assert run_statement(wish, each.mechanism).epsilon == each.statement.epsilon <= 20.0
        # Twenty for five rounds, and a little more than four for each: a delta is allowed.
        assert 3.9 < each.mechanism.epsilon < 8.0
        assert each.mechanism.repeats > 1
        assert each.bytes_per_round < found["one_bit"].bytes_per_round
    # Errors are in units of the coordinate clip, whatever ball the mechanism has.
    assert found["cldp_linf"].mean_squared_error == found["cldp_linf"].mechanism.mse() / 100
    assert found["cldp_l2"].clip == "L2"
    assert found["cldp_l2"].mean_squared_error == pytest.approx(found["cldp_l2"].mechanism.mse() * 4.0)
    smaller = plan(dataclasses.replace(wish, norms=Norms(l2=2.0)), ("cldp_l2",)).designs[0]
    assert smaller.mean_squared_error == pytest.approx(smaller.mechanism.mse() * 0.04)
    # Where no coordinate can be released often enough, a whole round still can.
    tight = Wish(num_clients=100, dimension=10_000, rounds=1, epsilon=1.0, delta=1e-9, in_sum=False)
    planned = plan(tight, ("one_bit", "cldp_linf"))
    assert [each.name for each in planned.designs] == ["cldp_linf"]
    assert "one_bit" in planned.missing
    assert planned.advice is None


def test_says_what_would_meet_an_impossible_target() -> None:
    wish = Wish(num_clients=20, dimension=20_000, rounds=50, epsilon=0.5)
    found = plan(wish, ("one_bit",))
    assert not found.designs
    assert found.advice is not None
    mechanism = pq.design("one_bit", epsilon=0.01)
    assert found.advice.epsilon == pytest.approx(run_statement(wish, mechanism).epsilon, rel=0.02)
    assert found.advice.num_clients is not None
    more = dataclasses.replace(wish, num_clients=found.advice.num_clients)
    assert plan(more, ("one_bit",)).designs
    assert "at least" in str(found.advice)
    easier = dataclasses.replace(wish, dimension=200, epsilon=0.6)
    advised = plan(easier, ("one_bit",)).advice
    assert advised is not None
    assert advised.rounds is not None
    assert plan(dataclasses.replace(easier, rounds=advised.rounds), ("one_bit",)).designs


def test_a_curve_of_error_against_epsilon() -> None:
    found = plan(Wish(num_clients=50, dimension=50, rounds=2, epsilon=3.0), ("one_bit",), curve=True)
    points = found.curves["one_bit"]
    assert len(points) >= 5
    assert [p.mean_squared_error for p in points] == sorted(
        (p.mean_squared_error for p in points), reverse=True
    )


@pytest.mark.parametrize(
    "changes", [{"rounds": 0}, {"epsilon": 0.0}, {"delta": 1.0}, {"corrupt": 10}, {"dropped": -1}]
)
def test_impossible_wishes(changes: dict[str, float]) -> None:
    sizes = {"num_clients": 10, "dimension": 5, "rounds": 2, "epsilon": 1.0} | changes
    with pytest.raises(InvalidSpecError):
        Wish(**sizes)  # type: ignore[arg-type]
