"""``python -m simulations.sum_errors``: the error of ``optm_aggregate`` over that of a central Gaussian.

Rotated updates at the norm bound, the same for all clients, at an equal (epsilon, delta) of the whole run in
the aggregate view; the clip is chosen by the design, and its bias is in the error. Every design is certified
on the bits or the table that are sampled, and counted by the accountant.
"""

from __future__ import annotations

import math
import time
from typing import Annotated

import numpy as np
import typer
from scipy.stats import norm

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Norms, Release, View
from fl_privquant.design.spread import clipped_moments
from fl_privquant.mechanisms.optm_aggregate import AggregateSpec, planned_norm_ratio
from simulations.central import noise_of_sum

__all__ = ["main", "measure"]

# A standard normal number, as samples.
_NORMAL = norm.ppf((np.arange(20_001) + 0.5) / 20_001)


def measure(
    dimension: int, clients: int, epsilon: float, bits: int, rounds: int = 50, delta: float = 1e-5
) -> dict[str, float | int | str]:
    """One cell: the design, what it costs, and its error over the central Gaussian's."""
    start = time.perf_counter()
    wish = {
        "num_clients": clients,
        "dimension": dimension,
        "run_epsilon": epsilon,
        "run_delta": delta,
        "rounds": rounds,
        "levels": 2**bits,
    }
    ratio = planned_norm_ratio(AggregateSpec(**wish))  # type: ignore[arg-type]
    mechanism = pq.design("optm_aggregate", **wish, norm_ratio=ratio, cache=False)  # type: ignore[arg-type]
    accountant = Accountant()
    release = Release(mechanism, dimension, View.aggregate(clients), norms=Norms(l2=ratio))
    accountant.add(release, rounds)
    statement = accountant.statement(delta)
    spread = math.sqrt(dimension) / ratio
    inputs = np.clip(_NORMAL / spread, -1.0, 1.0)
    error = spread**2 * mechanism.mse(inputs) / clients + clipped_moments(spread)[1]
    # In units of the variance of a coordinate, whose L2 clip is the root of the dimension.
    central = (noise_of_sum(math.sqrt(dimension), rounds, epsilon, delta) / clients) ** 2
    return {
        "dimension": dimension,
        "clients": clients,
        "run_epsilon": epsilon,
        "bits": bits,
        "spread": round(spread, 2),
        "epsilon_reached": statement.epsilon,
        "spends": statement.brief,
        "counted_by": statement.method,
        "ratio_to_central": error / central,
        "seconds": time.perf_counter() - start,
    }


def main(
    dimension: Annotated[list[int] | None, typer.Option(help="Numbers of coordinates.")] = None,
    clients: Annotated[list[int] | None, typer.Option(help="Numbers of clients.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Targets of the whole run.")] = None,
    bits: Annotated[list[int] | None, typer.Option(help="Bits of a code before masking.")] = None,
) -> None:
    """Print one row of a Markdown table for each cell."""
    typer.echo("| d | n | target | spends | bits | spread | error / central | counted by | seconds |")
    typer.echo("|---|---|---|---|---|---|---|---|---|")
    for size in dimension or [7850]:
        for number in clients or [100, 1000]:
            for target in epsilon or [1.0, 4.0, 10.0]:
                for width in bits or [1, 2, 3]:
                    cell = measure(size, number, target, width)
                    typer.echo(
                        f"| {size} | {number} | {target:g} | {cell['spends']} | {width} | {cell['spread']} "
                        f"| {cell['ratio_to_central']:.4f} "
                        f"| {cell['counted_by']} | {cell['seconds']:.1f} |"
                    )


if __name__ == "__main__":
    typer.run(main)
