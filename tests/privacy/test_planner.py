"""The planner: what it lists meets the target, and little more private designs would not be needed."""

from __future__ import annotations

import dataclasses

import pytest

import fl_privquant as pq
from fl_privquant.errors import InvalidSpecError
from fl_privquant.privacy import Unit, Wish, plan

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
        assert wish.statement(each.mechanism).epsilon == each.statement.epsilon
        assert each.mean_squared_error == each.mechanism.mse() / 200
        assert each.bytes_per_round == -(-each.mechanism.sum_bits(200) * 650 // 8)
    one_bit = next(each for each in found.designs if each.name == "one_bit")
    looser = pq.design("one_bit", epsilon=one_bit.epsilon_per_coordinate * 1.03)
    assert wish.statement(looser).epsilon > 8.0


def test_views_units_and_adversaries_matter() -> None:
    wish = Wish(num_clients=100, dimension=100, rounds=10, epsilon=4.0)
    per_coordinate = [
        plan(each, ("one_bit",)).designs[0].epsilon_per_coordinate
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


def test_says_what_would_meet_an_impossible_target() -> None:
    wish = Wish(num_clients=20, dimension=20_000, rounds=50, epsilon=0.5)
    found = plan(wish, ("one_bit",))
    assert not found.designs
    assert found.advice is not None
    mechanism = pq.design("one_bit", epsilon=0.01)
    assert found.advice.epsilon == pytest.approx(wish.statement(mechanism).epsilon, rel=0.02)
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
