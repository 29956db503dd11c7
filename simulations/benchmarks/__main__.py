"""``python -m simulations.benchmarks <names>``: measure, print tables, fail if a target is missed.

``all`` measures everything, and writes the tables, the figures and the page of this folder; ``--write``
does so for some, and leaves what was measured of the others. ``--quick`` is for trying: small sizes, nothing
written.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import traceback

from simulations.benchmarks import results_page
from simulations.benchmarks.measure import Row, print_rows
from simulations.benchmarks.results_page import CATALOGUE


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 if every target of the chosen benchmarks is met."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=[*CATALOGUE, "all"], help="which ones")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that all runs; nothing kept"
    )
    parser.add_argument("--write", action="store_true", help="keep what is measured, as `all` does")
    options = parser.parse_args(arguments)
    names = list(CATALOGUE) if "all" in options.names else list(dict.fromkeys(options.names))
    keep = (options.write or "all" in options.names) and not options.quick
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows: list[Row] = []
    failed = False
    for name in names:
        module = importlib.import_module(f"{__package__}.{name}")
        if options.quick:
            for constant, small in CATALOGUE[name]["quick"].items():
                setattr(module, constant, tuple(small) if isinstance(small, list) else small)
        try:
            measured = module.run()
        except Exception:
            # One benchmark that fails does not discard what the others measure, which takes an hour.
            traceback.print_exc()
            failed = True
            continue
        if name == "growth":
            if keep:
                results_page.write_points(measured)
            continue
        print_rows(CATALOGUE[name]["title"], measured)
        rows += measured
        if keep:
            results_page.write_rows(name, measured)
    if keep:
        results_page.write_page()
    return 0 if not failed and all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
