"""How long designs take: in single linear programs, in the solver's own time, and from the cache."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np

import fl_privquant as pq
from fl_privquant.design import linear_program
from fl_privquant.design.free import design_free, place_knots
from fl_privquant.law.density import UniformDensity
from simulations.benchmarks.measure import Row, at_most, median_seconds, output_of

ROUNDS = 3


def run() -> list[Row]:
    """Every measurement of designing beside its target."""
    return [_search(), _model_building(), _cached()]


def _search() -> Row:
    """A whole design, bins searched, against one program of the kind that the result comes from."""
    mechanism = pq.design("optm", epsilon=1.0, bits=2, cache=False)
    knots = place_knots(mechanism.values, 33)
    search, single = median_seconds(
        [
            lambda: pq.design("optm", epsilon=1.0, bits=2, cache=False),
            lambda: design_free(mechanism.values, 1.0, UniformDensity(), 2, knots),
        ],
        ROUNDS,
    )
    return at_most("2-bit free design, bins searched, in single programs", search / single, 300.0)


def _model_building() -> Row:
    """The whole of a 64-level program, PuLP included, against the time inside HiGHS, processor time both."""
    values = np.linspace(-3.0, 3.0, 64)
    knots = place_knots(values, 129)
    inside: list[float] = []
    solver = linear_program._solver

    def timed(pulp: Any, method: linear_program.Method) -> Any:
        made = solver(pulp, method)
        call = made.callSolver

        def call_solver(problem: object) -> None:
            start = time.process_time()
            call(problem)
            inside.append(time.process_time() - start)

        made.callSolver = call_solver
        return made

    linear_program._solver = timed
    try:
        (whole,) = median_seconds(
            [lambda: design_free(values, 1.0, UniformDensity(), 2, knots, "ipm")], ROUNDS
        )
    finally:
        linear_program._solver = solver
    ratio = whole / float(np.median(inside))
    return at_most("64-level free program, in HiGHS' own time for it", ratio, 1.5)


# Imports are lazy: another design makes them before the clock starts.
_LOAD = """
import time, fl_privquant as pq
pq.design("one_bit", epsilon=1.0)
start = time.perf_counter()
pq.design("optm", epsilon=1.0, bits=2)
print(1e3 * (time.perf_counter() - start))
"""


def _cached() -> Row:
    """A design that is in the cache, in a new process: the best of several, after import."""
    with tempfile.TemporaryDirectory() as directory:
        times = [float(output_of("-c", _LOAD, FL_PRIVQUANT_CACHE=directory)) for _ in range(4)]
    return at_most("a cached design, milliseconds after import", min(times[1:]), 20.0)
