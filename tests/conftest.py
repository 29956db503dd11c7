"""What all tests share: a design cache of their own, clean logs, and a Ray cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import absl.logging
import flwr.supercore  # sets its log up
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from tests.e2e import fresh_environment
from tests.flower_log import LogLines, listen
from tests.ray_cluster import RayCluster

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that no worker begins a long test when the others have nothing left."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


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


@pytest.fixture
def flower_log() -> Iterator[LogLines]:
    """What Flower's logger says during the test."""
    with listen() as lines:
        yield lines


def folder_of_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that all workers of a run share: a worker's own is inside it."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Fills a folder of that name in one worker of a run, while the others wait for it."""

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder = folder_of_run(tmp_path_factory) / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                folder.mkdir()
                fill(folder)
        return folder

    return make


@pytest.fixture(scope="session", autouse=True)
def suite_designs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of the suite's designs, which are neither read from nor left in the user's cache.

    All workers of a run share one, so that each design is computed once.
    """
    designs = folder_of_run(tmp_path_factory) / "designs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_PRIVQUANT_CACHE", str(designs))
        yield designs


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """The Ray cluster of this worker of pytest-xdist, for one test after the other."""
    with RayCluster.start(tmp_path_factory.mktemp("ray") / "head.log") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def wheel(make_once: Callable[..., Path]) -> Path:
    """The wheel of this repository."""
    (built,) = make_once("wheel", fresh_environment.build_wheel).glob("*.whl")
    return built


@pytest.fixture(scope="session")
def fresh(make_once: Callable[..., Path], wheel: Path) -> Path:
    """The programs of an environment with the wheel in it."""
    folder = make_once("environment", lambda folder: fresh_environment.create(folder, wheel))
    return fresh_environment.scripts_of(folder)
