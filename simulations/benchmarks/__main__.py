"""``python -m simulations.benchmarks <name>``: measure, print a table, fail if a target is missed."""

from __future__ import annotations

import argparse
import importlib

# A benchmark is a module of this package with run() -> rows; a row that has a target says if it holds.
BENCHMARKS = ("design", "encode", "flower", "secagg", "sweep", "wire")


def main() -> int:
    """Exit status: 0 if every target of the chosen benchmarks is met."""
    parser = argparse.ArgumentParser(prog="python -m simulations.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*BENCHMARKS, "all"], help="which ones")
    names = parser.parse_args().names
    names = BENCHMARKS if "all" in names else names
    rows = [row for name in names for row in importlib.import_module(f"{__package__}.{name}").run()]
    return 0 if all(getattr(row, "holds", True) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
