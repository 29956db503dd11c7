"""Arguments of other types than declared: each is refused by an error of the package, or works."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant import accounting, flower, secagg
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import PrivQuantError
from fl_privquant.flower import simulation

BAD = ("x", None, [1], {}, True, 1j, b"x", 10**5000, math.nan, -1, object())
MECHANISM = pq.design("one_bit", epsilon=1.0)
TARGET = pq.Target(epsilon=1.0, rounds=1, num_clients=100)
# Values of the arguments that must be given.
GIVEN: dict[str, Any] = {
    "strategy": FedAvg(),
    "encoding": Encoding(MECHANISM, clip=0.1),
    "base": Encoding(MECHANISM, clip=0.1),
    "mechanism": MECHANISM,
    "blob": MECHANISM.to_bytes(),
    "x": [0.5],
    "epsilon": 1.0,
    "max_epsilon": 1.0,
    "clip": 0.1,
    "num_clients": 10,
    "rounds": 3,
    "seed": 1,
    "dimension": 90,
}
FUNCTIONS: list[Callable[..., Any]] = [
    pq.RandomStream.seeded,
    secagg.choose_parameters,
    MECHANISM.sum_bits,
    MECHANISM.pmf,
    type(MECHANISM).from_bytes,
]


def public_classes() -> list[Any]:
    """The public classes that can be made of the arguments given above."""
    found: dict[Any, None] = {}
    for module in (pq, flower, accounting, secagg, simulation):
        for name in module.__all__:
            kind = getattr(module, name)
            own = isinstance(kind, type) and kind.__module__.startswith("fl_privquant")
            if own and not issubclass(kind, BaseException) and not inspect.isabstract(kind):
                needed = [each.name for each in parameters(kind) if each.default is each.empty]
                if set(needed) <= set(GIVEN) and not getattr(kind, "_is_protocol", False):
                    found[kind] = None
    return list(found)


def parameters(made: Callable[..., Any]) -> list[inspect.Parameter]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in inspect.signature(made).parameters.values() if each.kind not in variable]


def test_the_classes_that_matter_are_among_them() -> None:
    names = {kind.__name__ for kind in public_classes()}
    assert names >= {
        "Target",
        "PrivQuantMod",
        "PrivQuantStrategy",
        "SecureSum",
        "Budget",
        "Release",
        "Accountant",
    }
    assert names >= {"FixedSampling", "PoissonSampling", "QuantileClip", "Federation", "SpendingLedger"}


@pytest.mark.parametrize("made", [*public_classes(), *FUNCTIONS], ids=lambda made: made.__qualname__)
def test_no_argument_raises_an_error_of_pythons(made: Callable[..., Any]) -> None:
    """Some 45 of them did: TypeError, AttributeError, ValueError and ZeroDivisionError without a name."""
    needed = {each.name: GIVEN[each.name] for each in parameters(made) if each.default is each.empty}
    assert made(**needed) is not None
    for argument in parameters(made):
        for bad in BAD:
            with contextlib.suppress(PrivQuantError):
                made(**{**needed, argument.name: bad})


def test_a_linear_program_that_stops_without_a_solution_is_an_error_of_the_package() -> None:
    """PuLP read the values of a solution that HiGHS did not have: IndexError."""
    with pytest.raises(PrivQuantError, match="the linear program was not solved"):
        pq.design("mvu", epsilon=100.0, bits=1, cache=False)
