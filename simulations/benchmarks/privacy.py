"""What privacy accounting costs: every level of a large run, and the recount that follows each round.

* Seconds of processor time for all levels of what an epsilon means (a coordinate, a round, the whole run;
  local and aggregate view) at 10^6 coordinates, 10^3 rounds and 10^4 clients, as first asked for: nothing of
  it is in the accountant's memory. Designing the mechanism does not count.
* The recount of all levels after a round as a share of that round: 100 clients, 10^5 parameters, the inline
  engine, without local training.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

import fl_privquant as pq
from fl_privquant.accounting import Norms, Release, View
from fl_privquant.accounting.accountant import statement_levels
from fl_privquant.design.spread import usual_norm_ratio
from simulations.benchmarks import flower
from simulations.benchmarks.flower_rounds import TorchRounds, private_mod, private_strategy
from simulations.benchmarks.measure import Row, at_most, in_turns, seconds_of

COORDINATES = 10**6
ROUNDS = 10**3
CLIENTS = 10**4
TURNS = 20
DELTA = 1e-5
MOST_SECONDS, MOST_SHARE = 2.0, 0.01


def run() -> list[Row]:
    """Every cost beside its target."""
    return [*_levels(), _recount()]


def _levels() -> list[Row]:
    designs: dict[str, dict[str, Any]] = {
        "optm": {"epsilon": 1.0, "bits": 2},
        "one_bit": {"epsilon": 1.0},
        "pbm": {"epsilon": 1.0, "bits": 2},
        "skellam": {"epsilon": 1.0, "num_clients": CLIENTS},
        "rounded_gaussian": {"epsilon": 8.0, "num_clients": CLIENTS},
    }
    view = View.aggregate(CLIENTS)
    # The first statement of a process imports and compiles code, which is not counted.
    statement_levels(Release(pq.design("one_bit", epsilon=0.5), 10, View.aggregate(10)), 2, DELTA)
    rows = []
    for name, parameters in designs.items():
        mechanism = pq.design(name, **parameters)
        norms = Norms(l2=usual_norm_ratio(COORDINATES)) if name == "rounded_gaussian" else Norms()
        release = Release(mechanism, COORDINATES, view, norms=norms)
        seconds = seconds_of(partial(statement_levels, release, ROUNDS, DELTA))
        where = f"d = {COORDINATES:.0e}, T = {ROUNDS:.0e}, n = {CLIENTS:.0e}"
        rows.append(at_most(f"{name}, {where}: seconds for all levels", seconds, MOST_SECONDS))
    return rows


def _recount() -> Row:
    strategy = private_strategy()
    rounds = TorchRounds(strategy, [private_mod()], flower.CLIENTS)

    def recount() -> float:
        return seconds_of(lambda: strategy.statements(refine=False), time.perf_counter)

    # The first round compiles and warms up.
    seconds = in_turns([rounds.run_one, recount], TURNS + 1)[1:]
    share = float(np.median(seconds[:, 1] / seconds[:, 0]))
    where = f"{flower.CLIENTS} clients, {rounds.num_parameters:.0e} parameters"
    return at_most(f"{where}: recount after a round, as a share of it", share, MOST_SHARE)
