"""``python -m simulations.benchmarks <names>``: measure, print tables, fail if a target is missed.

``all`` measures everything, and writes the tables, the figures and the page of this folder; ``--write``
does so for some, and leaves what was measured of the others. ``--quick`` is for trying: small sizes, nothing
written.
"""

from __future__ import annotations

import argparse
import importlib
import traceback

from simulations.benchmarks import page
from simulations.benchmarks.measure import Row

# A benchmark is a module of this package with run() -> rows; a row that has a target says if it holds.
BENCHMARKS = (
    "encode",
    "design",
    "wire",
    "privacy",
    "flower",
    "secagg",
    "handshake",
    "sweep",
    "memory",
    "peers",
)

QUICK: dict[str, dict[str, object]] = {
    "encode": {"COORDINATES": 10**5, "ROUNDS": 2},
    "design": {"ROUNDS": 1},
    "wire": {"COORDINATES": 10**5, "ROUNDS": 2},
    "privacy": {"COORDINATES": 10**3, "ROUNDS": 10, "CLIENTS": 100, "TURNS": 2},
    "flower": {
        "CLIENTS": 5,
        "TURNS": 2,
        "MANY_CLIENTS": 10,
        "INLINE_ROUNDS": 2,
        "RAY_ROUNDS": 2,
        "THREAD_TURNS": 1,
        "IMAGES": 64,
    },
    "secagg": {
        "DIMENSIONS": (10**3,),
        "CLIENTS": (10,),
        "GROWTH_CLIENTS": (10, 50),
        "ROUNDS": 1,
        "SIGNED_ROUNDS": 1,
    },
    "handshake": {"CLIENTS": (10, 50), "ROUNDS": 2, "SIGNED_ROUNDS": 1},
    "sweep": {"RUNS": 2, "RAY_RUNS": 1},
    "peers": {"CLIENTS": 20, "ROUNDS": 1, "TURNS": 1, "IMAGE_CLIENTS": 3, "IMAGES_OF_CLIENT": 10},
    "memory": {"DIMENSION": 10**6, "CLIENTS": 3},
    "growth": {
        "DIMENSIONS": (10**3, 10**4),
        "LEVELS": (2, 4, 16),
        "DESIGN_LEVELS": (2, 3),
        "CLIENTS": (5, 10),
        "TURNS": 1,
    },
}
"""Sizes for trying, by module."""


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 if every target of the chosen benchmarks is met."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=[*BENCHMARKS, "growth", "all"], help="which ones")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that all runs; nothing kept"
    )
    parser.add_argument("--write", action="store_true", help="keep what is measured, as `all` does")
    options = parser.parse_args(arguments)
    names = [*BENCHMARKS, "growth"] if "all" in options.names else list(dict.fromkeys(options.names))
    keep = (options.write or "all" in options.names) and not options.quick
    rows: list[Row] = []
    failed = False
    for name in names:
        module = importlib.import_module(f"{__package__}.{name}")
        if options.quick:
            for constant, small in QUICK[name].items():
                setattr(module, constant, small)
        try:
            measured = module.run()
        except Exception:
            # What others take an hour to measure is not given up for one that fails.
            traceback.print_exc()
            failed = True
            continue
        if name == "growth":
            if keep:
                page.write_points(measured)
            continue
        rows += measured
        if keep:
            page.write_rows(name, measured)
    if keep:
        page.write_page()
    return 0 if not failed and all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
