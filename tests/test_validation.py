"""Arguments of the wrong type or range: an error of ours that names the argument, whoever checks it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fl_privquant as pq
from fl_privquant import _validation
from fl_privquant.accounting import Budget, SimulatedSum
from fl_privquant.codec.encoding import Encoding
from fl_privquant.flower import (
    CheckpointStrategy,
    PrivQuantMod,
    PrivQuantStrategy,
    QuantileClip,
    ScheduledKeep,
    ScheduledMechanism,
)
from fl_privquant.planning.client_sampling import CohortSampling, PoissonSampling
from fl_privquant.secagg import ClientPolicy

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "epsilon as a text": (lambda: pq.design("optm", epsilon="1"), "epsilon: '1' is not a number"),
    "epsilon of noise as a text": (lambda: pq.design("laplace", epsilon="1"), "epsilon: '1' is not a number"),
    "epsilon too large": (lambda: pq.design("optm", epsilon=1e6), "epsilon: 1000000.0 is outside"),
    "epsilon true": (lambda: pq.design("one_bit", epsilon=True), "epsilon: True is not a number"),
    "epsilon a list": (lambda: pq.design("one_bit", epsilon=[1.0]), "epsilon: \\[1.0\\] is not a number"),
    "bits a list": (lambda: pq.design("optm", epsilon=1.0, bits=[2]), "bits: \\[2\\] is not a whole number"),
    "levels not a number": (lambda: pq.design("optm", epsilon=1.0, levels=math.nan), "levels: nan is not"),
    "bins of letters": (lambda: pq.design("optm", epsilon=1.0, bins=["a", "b"]), "bins: 'a' is not a number"),
    "bins a text": (lambda: pq.design("optm", epsilon=1.0, bins="abc"), "bins: 'abc' is not a list"),
    "bins a number": (lambda: pq.design("optm", epsilon=1.0, bins=3), "bins: 3 is not a list"),
    "lattice a number": (
        lambda: pq.design("optm", epsilon=1.0, lattice=7),
        "lattice: 7 is not true or false",
    ),
    "a mechanism that is a number": (lambda: pq.design(3), "mechanism: 3 is not one of"),
    "an unsolvable program": (lambda: pq.design("optm", epsilon=1e-12), "raise epsilon"),
    "clip as a text": (lambda: _bit().encode([0.1], clip="0.1"), "clip: '0.1' is not a finite number"),
    "no clip": (lambda: _bit().encode([0.1], clip=None), "clip: None is not a finite number"),
    "a seed for a stream": (lambda: _bit().encode([0.1], rng=3), "rng: 3 is not a RandomStream"),
    "floats decoded": (lambda: _bit().decode([0.5, 1.2]), "indices: float64, expected the integers"),
    "texts decoded": (lambda: _bit().decode(["a"]), "indices: <U1, expected the integers"),
    "clip of decoding": (lambda: _bit().decode(np.array([1]), clip="1"), "clip: '1' is not a finite number"),
    "floats decoded by noise": (lambda: _noise().decode([0.5]), "float64, expected integers"),
    "clip of noise": (lambda: _noise().decode(np.array([1]), clip="1"), "clip: '1' is not a finite number"),
    "the mod's limit": (lambda: PrivQuantMod("1"), "max_epsilon: '1' is not a number"),
    "the mod's budget": (lambda: PrivQuantMod(1.0, budget="3"), "budget: '3' is not a number"),
    "a budget": (lambda: Budget("3"), "budget: '3' is not a number"),
    "a target": (lambda: pq.Target(epsilon="8", rounds=10, num_clients=5), "epsilon: '8' is not a finite"),
    "rounds": (lambda: pq.Target(epsilon=8.0, rounds="10", num_clients=5), "rounds: '10' is not a whole"),
    "a plan's dimension": (
        lambda: pq.Target(epsilon=8.0, rounds=1, num_clients=50).plan(dimension="x"),
        "dimension: 'x' is not a whole number",
    ),
    "a plan's norm": (
        lambda: pq.Target(epsilon=8.0, rounds=1, num_clients=50).plan(dimension=10, l2_clip="1"),
        "l2_clip: '1' is not a finite number",
    ),
    "a fraction": (lambda: pq.SecureSum(corrupt_fraction="x"), "corrupt_fraction: 'x' is not a number"),
    "no fraction": (lambda: pq.SecureSum(dropout_fraction=None), "dropout_fraction: None is not a number"),
    "no rounds": (lambda: pq.Target(epsilon=8.0, rounds=None, num_clients=5), "rounds: None is not a whole"),
    "no probability": (lambda: PoissonSampling(probability=None), "probability: None is not a number"),
    "no rounds apart": (lambda: CohortSampling(rounds_apart=None), "rounds_apart: None is not a whole"),
    "no dimension": (lambda: replace(_quantizer(), dimension=None), "dimension: None is not a whole"),
    "a dimension of 0": (
        lambda: replace(pq.design("privunit", epsilon=2.0, dimension=8), dimension=0),
        "dimension: 0 is not a whole",
    ),
}


def _bit() -> Any:
    return pq.design("one_bit", epsilon=1.0)


def _quantizer() -> Any:
    return pq.design("qsgd", dimension=8)


def _noise() -> Any:
    return pq.design("discrete_laplace", epsilon=1.0, levels=4)


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_argument_is_named_in_one_line(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(pq.PrivQuantError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_numbers_of_numpy_are_numbers() -> None:
    assert _validation.check_number("x", np.float32(0.5)) == 0.5
    assert _validation.check_integer("x", np.int64(3), least=1) == 3
    assert _validation.check_type("x", np.float64(2.0), float | None) == 2.0
    assert pq.design("one_bit", epsilon=np.float64(1.0)).epsilon == pq.design("one_bit", epsilon=1).epsilon


@pytest.mark.parametrize("value", ["3", True, None, 2.5, math.inf, math.nan, 0, 11])
def test_whole_numbers_out_of_range(value: Any) -> None:
    with pytest.raises(pq.InvalidSpecError, match="is not a whole number from 1 to 10"):
        _validation.check_integer("x", value, 1, 10)


def test_a_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(pq.InvalidSpecError) as refused:
        _validation.check_number("x", "a" * 10_000)
    assert len(str(refused.value)) < 200


def test_a_whole_float_stays_one_where_it_may_be_either() -> None:
    assert type(_validation.check_type("keep", 1.0, int | float | None)) is float
    assert type(_validation.check_type("keep", 1.0, int | None)) is int


MISTYPED = {
    pq.Target: ("round", "rounds"),
    Budget: ("epsilom", "epsilon"),
    Encoding: ("l2clip", "l2_clip"),
    pq.SecureSum: ("corrupt", "corrupt_fraction"),
    SimulatedSum: ("dropout", "dropout_fraction"),
    pq.FixedSampling: ("client", "clients"),
    PoissonSampling: ("probabilty", "probability"),
    CohortSampling: ("round_apart", "rounds_apart"),
    PrivQuantMod: ("epsilon", "max_epsilon"),
    ClientPolicy: ("min_client", "min_clients"),
    PrivQuantStrategy: ("agregation", "aggregation"),
    CheckpointStrategy: ("strateg", "strategy"),
    QuantileClip: ("client_quantil", "client_quantile"),
    ScheduledMechanism: ("change", "changes"),
    ScheduledKeep: ("change", "changes"),
}


@pytest.mark.parametrize("cls", MISTYPED)
def test_an_argument_that_a_class_does_not_take_is_named_with_the_nearest_one(cls: Any) -> None:
    mistyped, meant = MISTYPED[cls]
    names = list(inspect.signature(cls).parameters)
    assert meant in names
    with pytest.raises(pq.InvalidSpecError) as refused:
        cls(**{mistyped: 3})
    taken = f"which takes {', '.join(names)}; did you mean {meant!r}?"
    assert str(refused.value) == f"{mistyped}: not an argument of {cls.__name__}, {taken}"


def test_an_argument_that_plan_does_not_take_is_named_with_the_nearest_one() -> None:
    target = pq.Target(epsilon=8.0, rounds=3, num_clients=10)
    with pytest.raises(pq.InvalidSpecError, match=r"max_bit: neither an argument of plan.* 'max_bits'\?"):
        target.plan(100, max_bit=3)


def test_arguments_that_are_missing_are_named_by_python() -> None:
    with pytest.raises(TypeError, match="'rounds' and 'num_clients'"):
        pq.Target(8.0)  # type: ignore[call-arg]
