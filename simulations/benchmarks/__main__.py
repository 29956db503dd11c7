"""``python -m simulations.benchmarks NAME ...|all``: measure, print tables, and write ``benchmarks.json``."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fl_privquant.cli import program
from simulations.benchmarks import cohorts, encoding, planning, records, rounds, sweeps
from simulations.benchmarks.harness import Ratio, print_ratios, write_results

BENCHMARKS: dict[str, tuple[Callable[..., list[Ratio]], Mapping[str, Any]]] = {
    "encode": (encoding.encode, {"coordinates": 10**4, "turns": 1}),
    "design": (planning.design, {"mechanisms": ("rqm",), "turns": 1}),
    "plan": (planning.plan, {"num_clients": 50, "coordinates": 10**4}),
    "flower_round": (rounds.flower_round, {"num_clients": 4, "coordinates": 10**3, "rounds": 2}),
    "secure_sum": (rounds.secure_sum, {"num_clients": (10,), "coordinates": (10**3,), "rounds": 1}),
    "handshake": (rounds.handshake, {"num_clients": (10,), "coordinates": 100}),
    "record_gradients": (records.record_gradients, {"batch": 8, "turns": 1}),
    "cohorts": (cohorts.cohorts, {"num_clients": 20, "rounds": 3}),
    "pfl": (cohorts.pfl, {"num_clients": 20, "rounds": 3}),
    "training": (cohorts.training, {"num_clients": 2, "examples": 40, "rounds": 1}),
    "million": (cohorts.million, {"num_clients": 1000}),
    "ray_workers": (cohorts.ray_workers, {"num_clients": 4, "examples": 40, "rounds": 2}),
    "sweep": (sweeps.sweep, {"mechanisms": 2, "seeds": 1, "num_clients": 3, "rounds": 1}),
    "engines": (rounds.engines, {"num_clients": 4, "rounds": 2}),
}
"""Every benchmark by name, with small sizes for a quick trial."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def benchmarks(
    names: Annotated[list[str], typer.Argument(help=f"all, or some of: {', '.join(BENCHMARKS)}.")],
    quick: Annotated[bool, typer.Option(help="Use small sizes, to see that everything runs.")] = False,
    output: Annotated[Path, typer.Option(help="The folder for benchmarks.json.")] = Path(
        "outputs/benchmarks"
    ),
) -> None:
    """Measure ratios against a baseline in the same process; below 1 is cheaper than the baseline."""
    if unknown := set(names) - {*BENCHMARKS, "all"}:
        raise typer.BadParameter(f"{', '.join(unknown)}: expected all, or some of {', '.join(BENCHMARKS)}")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    results: dict[str, list[Ratio]] = {}
    failed = []
    for name in BENCHMARKS if "all" in names else dict.fromkeys(names):
        run, small = BENCHMARKS[name]
        try:
            results[name] = run(**(small if quick else {}))
            print_ratios(name, results[name])
        except Exception:  # one benchmark that fails must not discard the results of the others
            traceback.print_exc()
            failed.append(name)
    write_results(results, output)
    print(f"results: {output / 'benchmarks.json'}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    program.run(app)
