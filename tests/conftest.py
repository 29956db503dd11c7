"""What all tests share: a design cache of their own, and a few laws."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import absl.logging
import flwr.supercore  # sets its log up
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from fl_privquant.law.law import Law
from tests import preloads
from tests.e2e import fresh_environment
from tests.made_once import made_once
from tests.preloaded import Preloaded
from tests.ray_cluster import RayCluster

if TYPE_CHECKING:
    import execnet

settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# Hydra sets up logging anew for every run, and with that closes all handlers of the process. The one that
# absl makes when it is imported closes its stream too, which here is the file that pytest captures output in.
absl.logging.get_absl_handler().python_handler.setStream(sys.__stderr__)


_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4e9


def pytest_configure() -> None:
    """Keep temporary files in memory where Linux offers that, has room, and lets programs run from there.

    Ledgers, checkpoints and results are synchronized with the disk at every write, which tests would wait for
    longer than they compute. What is written can be read by every other process without that.
    """
    if not _MEMORY.is_dir():
        return
    system = os.statvfs(_MEMORY)
    if system.f_bavail * system.f_frsize > _MEMORY_BYTES and not system.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[execnet.XSpec]) -> None:
    """Fork all workers from one process that has imported what tests import: that takes seconds each time.

    Not for coverage, which has to see the package being imported.
    """
    if config.getoption("cov_source", default=None):
        return
    resources = contextlib.ExitStack()
    config.add_cleanup(resources.close)
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    python = resources.enter_context(preloads.workers(factory.getbasetemp()))
    for spec in specs:
        spec.python = python


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, and those that wait for other processes: at the end, workers that have none left take
    short ones from the others. Until then one worker waits, and the others keep the cores busy.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None and not _waits(item))


def _waits(item: pytest.Item) -> bool:
    return not {"preloaded", "preloaded_small"}.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """Leave what has been imported out of every later collection of garbage, and collect it more rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


_FLOWER_LOG = logging.getLogger(flwr.__name__)
_AS_IMPORTED = {name: getattr(_FLOWER_LOG, name) for name in ("level", "propagate", "disabled")}
_ROOT_LOG = logging.getLogger()
_ROOT_LEVEL, _ROOT_HANDLERS = _ROOT_LOG.level, tuple(_ROOT_LOG.handlers)


@pytest.fixture(autouse=True)
def logs_as_imported() -> None:
    """Logs say to each test what they would say to a new process: Ray and Hydra change them for good.

    Hydra also leaves handlers, which write to the captured output of a test that has ended, and fail.
    """
    for name, value in _AS_IMPORTED.items():
        setattr(_FLOWER_LOG, name, value)
    # Hydra disables the loggers that there are before a sweep.
    for name, logger in logging.Logger.manager.loggerDict.items():
        if name.startswith("fl_privquant") and isinstance(logger, logging.Logger):
            logger.disabled = False
    # Setting it makes all of the thousands of loggers forget which levels they are enabled for.
    if _ROOT_LOG.level != _ROOT_LEVEL:
        _ROOT_LOG.setLevel(_ROOT_LEVEL)
    for handler in _ROOT_LOG.handlers[:]:
        if handler not in _ROOT_HANDLERS and not type(handler).__module__.startswith("_pytest."):
            _ROOT_LOG.removeHandler(handler)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a run of the tests share."""
    own = tmp_path_factory.getbasetemp()
    # A worker's folder is inside that of the run.
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def suite_designs(run_folder: Path) -> Iterator[Path]:
    """The cache of the suite's designs, which are neither read from nor left in the user's cache.

    All workers of a run share one: it is made for that, and a design is computed once.
    """
    designs = run_folder / "designs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_PRIVQUANT_CACHE", str(designs))
        yield designs


@pytest.fixture(scope="session", autouse=True)
def parsed_files() -> Iterator[None]:
    """Hydra parses each file of settings once."""
    with pytest.MonkeyPatch.context() as patch:
        # Only tests that have imported Hydra compose.
        if "hydra" in sys.modules:
            from tests.parsed_files import keep_parsed_files

            keep_parsed_files(patch)
        yield


@pytest.fixture(scope="session")
def shared_ray_cluster(run_folder: Path, preloaded: Preloaded) -> Iterator[RayCluster]:
    """The Ray cluster that all workers of a run share."""
    with RayCluster.shared(run_folder, preloaded) as cluster:
        yield cluster


@pytest.fixture
def ray_cluster(shared_ray_cluster: RayCluster, run_folder: Path) -> Iterator[RayCluster]:
    """The Ray cluster for one test after the other: two would each wait for what the other one holds."""
    with shared_ray_cluster.alone(run_folder):
        yield shared_ray_cluster


@pytest.fixture(scope="session")
def fresh(run_folder: Path) -> Path:
    """The programs of an environment with the wheel in it, which all workers of a run share."""

    def make(folder: Path) -> None:
        fresh_environment.create(folder / "environment", fresh_environment.build_wheel(folder))

    return fresh_environment.scripts_of(made_once(run_folder / "fresh", make) / "environment")


@pytest.fixture(scope="session")
def preloaded_small(run_folder: Path) -> Iterator[Preloaded]:
    """Python for runs without torch, which all workers of a run share: it is not to be killed."""
    with preloads.small_programs(run_folder) as programs:
        yield programs


@pytest.fixture(scope="session")
def preloaded(run_folder: Path, preloaded_small: Preloaded) -> Iterator[Preloaded]:
    """Python and our command, which all workers of a run share: they are not to be killed."""
    with preloads.all_programs(run_folder, preloaded_small) as programs:
        yield programs


def random_law(seed: int, levels: int, num_knots: int) -> Law:
    """An unbiased continuous law: each row splits its mass between pairs of values around its knot."""
    rng = np.random.default_rng(seed)
    inner = np.sort(rng.uniform(-2.5, 2.5, levels - 2))
    values = np.concatenate([[-3.0], inner, [3.0]])
    knots = np.linspace(-1.0, 1.0, num_knots)
    rows = np.zeros((num_knots, levels))
    for k, knot in enumerate(knots):
        for low in np.flatnonzero(values < knot):
            for high in np.flatnonzero(values > knot):
                weight = rng.uniform(0.1, 1.0)
                share = (knot - values[low]) / (values[high] - values[low])
                rows[k, low] += weight * (1.0 - share)
                rows[k, high] += weight * share
        rows[k] /= rows[k].sum()
    return Law.from_knots(values, knots, rows)
