"""Run Flower's own tests of its privacy wrappers with our accountant in the place of theirs.

``python -m tests.flower.flower_suite CHECKOUT`` takes a checkout of Flower (1.35 or newer), reads its tests
from there, and runs them on the Flower that is installed. Tests that mock an accountant get ours, whose calls
are recorded, and so do tests of Flower's own one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from flwr.serverapp import NeighboringRelation, PrivacyConfig, SamplingMethod

from fl_privquant.flower import GaussianAccountant
from fl_privquant.flower._flower_internals import use_server_identity

WRAPPERS = "flwr.serverapp.strategy.dp_fixed_clipping_test"
ACCOUNTANT = "flwr.supercore.privacy_accounting.rdp_accountant_test"
RENYI_ONLY = {
    "match_reference_values": "expected_epsilon",
    "does_not_mutate": 'accounting_method == "rdp"',
    "rejects_unsafe": "RdpAccountant(_config(), orders)",
}
"""Tests that end at what only a Rényi accountant has (its figures, its name and its orders), and where. They
must come as far as that line."""


class ExpectRenyiOnly:
    """Expects a test to end at the line that asks for a Rényi accountant, and nowhere else."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        report = yield
        lines = [line for name, line in RENYI_ONLY.items() if name in item.name]
        if call.excinfo is not None and any(
            line in str(call.excinfo.traceback[-1].statement) for line in lines
        ):
            report.outcome, report.wasxfail = "skipped", f"only a Rényi accountant has: {lines[0]}"
        return report


class Spied:
    """A method of an accountant, with what a mock would tell about its calls."""

    def __init__(self, method: Any) -> None:
        self._method, self._mock = method, Mock()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._mock(*arguments, **named)
        return self._method(*arguments, **named)

    @property
    def return_value(self) -> Any:
        """What a further call returns."""
        return self._method()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mock, name)


class SpiedAccountant(GaussianAccountant):
    """Our accountant, for a federation of two."""

    def __init__(self, *, would_exceed: bool = False) -> None:
        relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
        super().__init__(PrivacyConfig(1e-6, 2, relation, sampling, 1.0 if would_exceed else None))
        for name in ("compose", "get_privacy_spent"):
            setattr(self, name, Spied(getattr(self, name)))


def load_test(name: str, checkout: Path) -> ModuleType:
    """A test module of the checkout, as if it were part of the Flower that is installed."""
    path = checkout / "framework" / "py" / Path(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(checkout: Path) -> int:
    """Run the tests; the exit code of pytest."""
    modules = {name: load_test(name, checkout) for name in (WRAPPERS, ACCOUNTANT)}
    modules[WRAPPERS]._accountant = SpiedAccountant  # type: ignore[attr-defined]
    modules[ACCOUNTANT].RdpAccountant = GaussianAccountant  # type: ignore[attr-defined]
    paths = [str(module.__file__) for module in modules.values()]
    quiet = [
        "-q",
        "-rx",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--tb=line",
        "--rootdir",
        str(checkout),
    ]
    with use_server_identity(1):
        return int(pytest.main([*paths, *quiet], plugins=[ExpectRenyiOnly()]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
