"""How costs grow with coordinates, clients and levels.

A cost is processor time, in units of what numpy takes to draw 10^6 float64, measured in turns with it. What
matters in the figures is the slope of a line, and the distance between two lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from flwr.serverapp.strategy import Strategy
from rich.console import Console

import fl_privquant as pq
from fl_privquant.accounting import Release, View
from fl_privquant.accounting.accountant import Accountant
from fl_privquant.design.free import design_free, place_knots
from fl_privquant.design.linear_program import Method
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower.engines import Federation
from fl_privquant.flower.engines.inline import InlineGrid
from fl_privquant.law.density import UniformDensity
from fl_privquant.packing.pack import pack_indices, unpack_indices
from fl_privquant.sampling.kernel import Sampler
from fl_privquant.secagg import GraphParameters, choose_parameters
from simulations.benchmarks.encode import dithered_table, numpy_encode
from simulations.benchmarks.flower_rounds import (
    SMALL_SHAPES,
    plain_strategy,
    private_mod,
    private_strategy,
    run_round,
    trained_client,
    zeros_of,
)
from simulations.benchmarks.flower_secagg import flower_round
from simulations.benchmarks.measure import Call, median_seconds
from simulations.benchmarks.secagg_rounds import own_round

DIMENSIONS = (10**3, 10**4, 10**5, 10**6, 10**7)
LEVELS = (2, 4, 8, 16, 32, 64, 128, 256)
PROGRAM_LEVELS = (2, 4, 8, 16, 32, 64)
DESIGN_LEVELS = (2, 3, 4, 5, 6, 8)
CLIENTS = (10, 30, 100, 300, 1000)
FLOWER_CLIENTS = (10, 30)
TURNS = 3
LEVELS_DIMENSION = 10**6
SECAGG_DIMENSION = 10**4
UNIT_DRAWS = 10**6


@dataclass(frozen=True)
class Point:
    """The cost of one thing at one size; ``against`` says what the size counts."""

    against: str
    series: str
    size: int
    cost: float


def run() -> list[Point]:
    """Costs against coordinates, clients and levels."""
    points = [*_coordinates(), *_levels(), *_clients()]
    Console().print(f"growth: {len(points)} points of {len({point.series for point in points})} lines")
    return points


def _cost(call: Call, repeats: int = 1) -> float:
    """Processor time of a call in units; a short one is repeated to be measurable."""
    generator, buffer = np.random.default_rng(0), np.empty(UNIT_DRAWS)

    def repeated() -> None:
        for _ in range(repeats):
            call()

    own, unit = median_seconds([repeated, lambda: generator.random(out=buffer)], TURNS)
    return own / repeats / unit


def _coordinates() -> list[Point]:
    points = []
    table = dithered_table(4)
    sampler = Sampler(table)
    generator = np.random.default_rng(0)
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    for dimension in DIMENSIONS:
        update = generator.normal(0.0, 0.3, dimension).astype(np.float32)
        indices = sampler.encode(update)
        payload = pack_indices(indices, 4)
        calls: dict[str, Call] = {
            "encode, 2 bits": partial(sampler.encode, update),
            "the same law in numpy": partial(numpy_encode, table.law, update, generator),
            "pack": partial(pack_indices, indices, 4),
            "unpack": partial(unpack_indices, payload, 4, dimension),
            "decode": partial(mechanism.decode, indices),
        }
        repeats = max(1, 10**6 // dimension)
        points += [
            Point("coordinates", name, dimension, _cost(call, repeats)) for name, call in calls.items()
        ]
        if dimension <= 10**6:
            cost = _cost(partial(own_round, GraphParameters(10, 8, 6), dimension)) / 10
            points.append(Point("coordinates", "secure aggregation, a client of 10", dimension, cost))
    return points


def _levels() -> list[Point]:
    calls: list[tuple[str, int, Call]] = []
    update = np.random.default_rng(0).normal(0.0, 0.3, LEVELS_DIMENSION).astype(np.float32)
    generator = np.random.default_rng(1)
    for levels in LEVELS:
        table = dithered_table(levels)
        peer = partial(numpy_encode, table.law, update, generator)
        calls.append(("encode 10⁶ coordinates", levels, partial(Sampler(table).encode, update)))
        calls.append(("the same law in numpy", levels, peer))
    for levels in [count for count in LEVELS if count in PROGRAM_LEVELS]:
        values = np.linspace(-3.0, 3.0, levels)
        knots = place_knots(values, 2 * levels + 1)
        method: Method = "ipm" if levels > 24 else "simplex"
        program = partial(design_free, values, 1.0, UniformDensity(), 2, knots, method)
        calls.append(("one linear program, 2 m + 1 knots", levels, program))
    for levels in DESIGN_LEVELS:
        design = partial(pq.design, "optm", epsilon=1.0, levels=levels, cache=False)
        calls.append(("design, bins searched", levels, design))
    return [Point("levels", name, levels, _cost(call)) for name, levels, call in calls]


def _clients() -> list[Point]:
    points = []
    mechanism = pq.design("optm", epsilon=1.0, bits=2)
    plain = plain_strategy()
    private = private_strategy(plain)
    for n in CLIENTS:
        few, chosen = GraphParameters(n, min(8, n - 1), min(6, n - 1)), choose_parameters(n)
        of_all_clients: dict[str, Call] = {
            "secure aggregation, a client with 8 neighbours": partial(own_round, few, SECAGG_DIMENSION),
            "secure aggregation, a client with as many as are safe": partial(
                own_round, chosen, SECAGG_DIMENSION
            ),
            "a round of plain FedAvg, a client": _round_of(plain, [], n),
            "a round with PrivQuant, a client": _round_of(private, [private_mod()], n),
        }
        if n in FLOWER_CLIENTS:
            theirs = partial(flower_round, chosen, SECAGG_DIMENSION)
            of_all_clients["Flower's SecAgg+, a client, the same graph"] = theirs
        points += [Point("clients", name, n, _cost(call) / n) for name, call in of_all_clients.items()]
        statement = _cost(partial(_statement, mechanism, n))
        points.append(Point("clients", "the privacy statement of a run in the sum", n, statement))
    return points


def _round_of(strategy: Strategy, mods: list[PrivQuantMod], num_clients: int) -> Call:
    """A round of a small model whose training takes no time, on the inline engine."""
    grid = InlineGrid(trained_client(SMALL_SHAPES, mods), Federation(num_clients))
    return partial(run_round, strategy, zeros_of(SMALL_SHAPES), grid)


def _statement(mechanism: pq.Mechanism, num_clients: int) -> None:
    """Time a statement without the accountant's cache, as when it is first asked for."""
    mechanism.loss(View(num_clients))
    accountant = Accountant()
    accountant.add(Release(mechanism, 650, View.aggregate(num_clients)), count=30)
    accountant.statement(delta=1e-5)
