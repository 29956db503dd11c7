"""``python -m simulations.benchmarks NAME ...|all``: measure, print tables, and write CSV and JSON."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path
from typing import Annotated

import typer

from fl_privquant.cli import program
from simulations.benchmarks import cohorts, encoding, planning, records, rounds, sweeps
from simulations.benchmarks.harness import Benchmark, Ratio, print_ratios, write_results

BENCHMARKS = {
    "encode": Benchmark(encoding.encode, {"coordinates": 10**4, "turns": 1}),
    "pack": Benchmark(encoding.pack, {"coordinates": 10**4, "turns": 1}),
    "design": Benchmark(planning.design, {"mechanisms": ("rqm",), "turns": 1}),
    "plan": Benchmark(planning.plan, {"num_clients": 50, "coordinates": 10**4}),
    "accounting": Benchmark(planning.accounting, {"num_clients": 50, "coordinates": 100, "rounds": 10}),
    "flower_round": Benchmark(rounds.flower_round, {"num_clients": 4, "coordinates": 10**3, "rounds": 2}),
    "secure_sum": Benchmark(rounds.secure_sum, {"num_clients": (10,), "coordinates": (10**3,), "rounds": 1}),
    "handshake": Benchmark(rounds.handshake, {"num_clients": (10,), "coordinates": 100}),
    "record_gradients": Benchmark(records.record_gradients, {"batch": 8, "turns": 1}),
    "cohorts": Benchmark(cohorts.cohorts, {"num_clients": 20, "rounds": 3}),
    "pfl": Benchmark(cohorts.pfl, {"num_clients": 20, "rounds": 3}),
    "training": Benchmark(cohorts.training, {"num_clients": 2, "examples": 40, "rounds": 1}),
    "million": Benchmark(cohorts.million, {"num_clients": 1000}),
    "ray_workers": Benchmark(cohorts.ray_workers, {"num_clients": 4, "examples": 40, "rounds": 2}),
    "sweep": Benchmark(sweeps.sweep, {"mechanisms": 2, "seeds": 1, "num_clients": 3, "rounds": 1}),
    "engines": Benchmark(rounds.engines, {"num_clients": 4, "rounds": 2}),
}
"""Every benchmark by name, with small sizes for a quick trial."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def benchmarks(
    names: Annotated[list[str], typer.Argument(help=f"all, or some of: {', '.join(BENCHMARKS)}.")],
    quick: Annotated[bool, typer.Option(help="Use small sizes, to see that everything runs.")] = False,
    output: Annotated[Path, typer.Option(help="Where to write benchmarks.csv and benchmarks.json.")] = Path(
        "outputs/benchmarks"
    ),
) -> None:
    """Measure ratios against a baseline in the same process; below 1 is cheaper than the baseline."""
    unknown = [name for name in names if name not in BENCHMARKS and name != "all"]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: expected all, or some of {', '.join(BENCHMARKS)}")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    results: dict[str, list[Ratio]] = {}
    failed = []
    for name in BENCHMARKS if "all" in names else dict.fromkeys(names):
        benchmark = BENCHMARKS[name]
        try:
            results[name] = benchmark.run(**(benchmark.quick if quick else {}))
        except Exception:  # one benchmark that fails must not discard the results of the others
            traceback.print_exc()
            failed.append(name)
            continue
        print_ratios(name, results[name])
    if results:
        write_results(results, output)
        typer.echo(f"results: {output / 'benchmarks.csv'}")
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    program.run(app)
