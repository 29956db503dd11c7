"""``python -m simulations.run`` without a process of its own, which takes seconds to start."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from simulations.run import main

RunHere = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunHere:
    """The command in this process: its exit code, and what it says to stdout and stderr."""

    def ended(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["run", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return ended
