"""What privacy accounting costs: every level of a large run, and the recount that follows each round.

* Seconds of processor time for all levels of what an epsilon means (a coordinate, a round, the whole run;
  local and aggregate view) at 10^6 coordinates, 10^3 rounds and 10^4 clients, as first asked for: nothing of
  it is in the accountant's memory. Designing the mechanism does not count.
* The recount of all levels after a round as a share of that round: 100 clients, 10^5 parameters, the inline
  engine, without local training.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.accounting import Norms, Release, View
from fl_privquant.accounting.accountant import statement_levels
from fl_privquant.design.spread import usual_norm_ratio
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy, SumOfCodes
from simulations.benchmarks import flower
from simulations.benchmarks.measure import Row, print_rows

COORDINATES = 10**6
ROUNDS = 10**3
CLIENTS = 10**4
TURNS = 20
DELTA = 1e-5
MOST_SECONDS, MOST_SHARE = 2.0, 0.01


def run() -> list[Row]:
    """Every cost beside its target, printed as a table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows = [*_levels(), _recount()]
    print_rows("privacy: what accounting costs", rows)
    return rows


def _levels() -> list[Row]:
    designs: dict[str, dict[str, Any]] = {
        "optm": {"epsilon": 1.0, "bits": 2},
        "one_bit": {"epsilon": 1.0},
        "pbm": {"epsilon": 1.0, "bits": 2},
        "skellam": {"epsilon": 1.0, "num_clients": CLIENTS},
        "optm_aggregate": {
            "bits": 2,
            "num_clients": CLIENTS,
            "dimension": COORDINATES,
            "rounds": ROUNDS,
            "run_epsilon": 8.0,
        },
    }
    view = View.aggregate(CLIENTS)
    # The first statement of a process imports and compiles code, which is not counted.
    statement_levels(Release(pq.design("one_bit", epsilon=0.5), 10, View.aggregate(10)), 2, DELTA)
    rows = []
    for name, parameters in designs.items():
        mechanism = pq.design(name, **parameters)
        norms = Norms(l2=usual_norm_ratio(COORDINATES)) if name == "optm_aggregate" else Norms()
        start = time.process_time()
        statement_levels(Release(mechanism, COORDINATES, view, norms=norms), ROUNDS, DELTA)
        seconds = time.process_time() - start
        where = f"d = {COORDINATES:.0e}, T = {ROUNDS:.0e}, n = {CLIENTS:.0e}"
        rows.append(Row(f"{name}, {where}: seconds for all levels", seconds, MOST_SECONDS, at_least=False))
    return rows


def _recount() -> Row:
    strategy = PrivQuantStrategy(
        FedAvg(fraction_evaluate=0.0),
        pq.design("optm", epsilon=1.0, bits=2),
        flower.CLIP,
        aggregation=SumOfCodes(),
    )
    rounds = flower.Rounds(strategy, [PrivQuantMod(max_epsilon=1.0)])
    shares = []
    for _ in range(TURNS + 1):
        seconds = rounds.run_one()
        start = time.perf_counter()
        strategy.statements(refine=False)
        shares.append((time.perf_counter() - start) / seconds)
    where = f"{flower.CLIENTS} clients, {rounds.num_parameters:.0e} parameters"
    return Row(
        f"{where}: recount after a round, as a share of it",
        float(np.median(shares[1:])),
        MOST_SHARE,
        at_least=False,
    )
