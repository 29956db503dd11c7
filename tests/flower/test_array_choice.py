"""Only some arrays of a model are sent, clipped and counted; the others are never touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

import fl_privquant as pq
from fl_privquant.accounting import Aggregation
from fl_privquant.codec.array_selection import ArrayChoice
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower import PrivQuantStrategy
from tests.flower.apps import Simulated, client_app, fedavg, mod_for, simulate

CLIENTS = 7
START = {
    "body.weight": np.full((30, 4), 1 / 3, np.float32),
    "norm.running_mean": np.full(9, 0.1, np.float64),
    "norm.batches": np.array(3),
    "head.weight": np.zeros((4, 5), np.float32),
    "head.bias": np.zeros(5, np.float16),
}


def run(
    aggregation: Aggregation,
    include: tuple[str, ...] = (),
    inner: Strategy | None = None,
    exclude: tuple[str, ...] = (),
) -> Simulated:
    encoding = pq.Encoding(pq.design("optm", epsilon=2.0, bits=2), clip=0.1)
    choice = pq.ArrayChoice(include=include, exclude=exclude)
    strategy = PrivQuantStrategy(inner or fedavg(), encoding, arrays=choice, aggregation=aggregation)

    # Every array is changed, by far more than the clip.
    def more(arrays: dict[str, np.ndarray], *_: int) -> dict[str, np.ndarray]:
        return {name: np.asarray(each + 1) for name, each in arrays.items()}

    return simulate(strategy, client_app([mod_for(aggregation)], more, lambda _: 1), CLIENTS, 2, START)


@pytest.mark.parametrize("aggregation", [pq.PerClient(), pq.SumOfCodes(), pq.SecureSum()])
@pytest.mark.parametrize("adam", [False, True])
def test_what_is_not_chosen_stays_to_the_last_bit(aggregation: Aggregation, adam: bool) -> None:
    done = run(aggregation, ("head.*",), fedavg(FedAdam) if adam else None)
    for name, before in START.items():
        assert done.model[name].dtype == before.dtype
        changed = not np.array_equal(done.model[name], before)
        assert changed == name.startswith("head."), name
    # 20 and 5 coordinates are counted, and no more.
    assert {record.codec.dimension for record in done.records} == {25}
    assert run(aggregation).records[-1].codec.dimension == 154


def test_fewer_coordinates_cost_less() -> None:
    chosen, everything = (run(pq.PerClient(), include).records[-1] for include in (("head.*",), ()))
    assert chosen.spent.epsilon < everything.spent.epsilon / 3
    assert chosen.bytes_up < everything.bytes_up


def test_excluded_patterns() -> None:
    done = run(pq.PerClient(), ("head.*", "body.*"), exclude=("*.bias",))
    assert done.records[0].codec.layout.names == ("body.weight", "head.weight")
    assert np.array_equal(done.model["head.bias"], START["head.bias"])


def test_a_plan_is_for_what_is_chosen() -> None:
    target = pq.Target(epsilon=8.0, delta=1e-5, rounds=2, num_clients=CLIENTS)
    plan = target.plan(dimension=25)
    strategy = PrivQuantStrategy(FedAvg(), plan, arrays=pq.ArrayChoice(include=["head.*"]))
    assert strategy.arrays.include == ("head.*",)
    assert strategy.request(1).layout(START).dimension == plan.dimension


@pytest.mark.parametrize(
    ("include", "exclude", "reason"),
    [
        ("head.*", (), "include: 'head.*', expected a list of patterns"),
        ((), 3, "exclude: 3, expected a list of patterns"),
        (("",), (), "include: '' is not a text"),
        (("a" * 257,), (), "is not a text of at most 256 characters"),
        (["a"] * 257, (), "include: 257 patterns, more than 256"),
    ],
)
def test_odd_patterns_are_refused(include: Any, exclude: Any, reason: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        PrivQuantStrategy(
            FedAvg(),
            pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=1.0),
            arrays=pq.ArrayChoice(include=include, exclude=exclude),
        )
    assert reason in str(refused.value)


def test_patterns_that_match_nothing_are_refused() -> None:
    model = "the model's (body.weight, norm.running_mean, norm.batches, head.weight, head.bias)"
    for choice, reason in (
        (ArrayChoice(["tail.*"]), f"include: 'tail.*' matches no array of {model}"),
        (ArrayChoice(exclude=["head.weight", "HEAD.*"]), f"exclude: 'HEAD.*' matches no array of {model}"),
        (ArrayChoice(["head.*"], ["head.?*"]), f"leave none of {model}"),
    ):
        with pytest.raises(InvalidSpecError) as refused:
            choice.of(START)
        assert str(refused.value).endswith(reason)
