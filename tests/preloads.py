"""The processes of :mod:`tests.preloaded` that a run of the tests shares, each forked from the one before it.

They import in this order, and each module once: what a run without torch needs, what all programs need, and
what the tests need. The workers of pytest-xdist are programs of the last one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests import deployment
from tests.preloaded import Preloaded

__all__ = ["all_programs", "small_programs", "worker", "workers"]

_COMPARED = ("fl_privquant", "simulations")
_SMALL = ("pandas", "pyarrow.parquet", "scipy.stats", "fl_privquant.flower.engines", "simulations.app")
_PROGRAMS = (
    *("matplotlib.pyplot", "pandas", "pyarrow.parquet", "sklearn.datasets", "torch"),
    *("fl_privquant.cli.plots", "fl_privquant.cli.printing", "fl_privquant.flower.engines"),
    *("simulations.app", "simulations.learning", "simulations.report.build", "simulations.run_setup"),
    *deployment.MODULES,
)
_SCRIPTS = {"fl-privquant": "fl_privquant.cli.main:main", "setup_worker.py": "tests.ray_worker:main"}
# Not Ray, which reads its environment when it is loaded: see :mod:`tests.ray_worker`.
_TESTS = (
    *("fl_privquant.cli.main", "simulations.run", "simulations.benchmarks", "simulations.studies.catalogue"),
    *("datasets", "dp_accounting", "flwr_datasets", "hydra", "jupytext", "mlflow", "nbformat", "trustme"),
)


def small_programs(folder: Path) -> contextlib.AbstractContextManager[Preloaded]:
    """Python that has loaded what a run without torch imports: forked in a third of the time."""
    modules = [*_SMALL, "tests.loaded_loops"]
    return Preloaded.shared(folder / "preloaded_small", modules, {}, _environment(), _COMPARED)


def all_programs(folder: Path, small: Preloaded) -> contextlib.AbstractContextManager[Preloaded]:
    """Python and our command, which have loaded what runs, reports, and processes of Flower and Ray need."""
    return Preloaded.shared(
        folder / "preloaded", _PROGRAMS, _SCRIPTS, _environment(), _COMPARED, within=small
    )


@contextlib.contextmanager
def workers(folder: Path) -> Iterator[str]:
    """What execnet is to start as the Python of a worker, which has loaded what tests import.

    Parameters
    ----------
    folder
        Shared by the workers, which find the other processes there.
    """
    with (
        small_programs(folder) as small,
        all_programs(folder, small) as programs,
        Preloaded.shared(
            folder / "workers",
            [*_PROGRAMS, *_TESTS],
            {"worker": f"{__name__}:worker"},
            _environment(),
            within=programs,
        ) as started,
    ):
        yield str(started.path / "worker")


def worker() -> None:
    """Run the text after ``python -u -c``: that of execnet flushes what it writes."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(sys.argv[-1], vars(main))


def _environment() -> dict[str, str]:
    return os.environ | {"FLWR_TELEMETRY_ENABLED": "0"}
