"""A machine on which neither the package nor the home of its user can be written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import pytest

from fl_privquant._compiled import compile_loop


def from_a_read_only_folder() -> Callable[[int], int]:
    """A function whose source lies where nobody, not even root, can make a folder."""
    space: dict[str, Any] = {}
    exec(compile("def double(x):\n    return 2 * x\n", "/proc/version", "exec"), space)
    double: Callable[[int], int] = space["double"]
    return double


def test_loops_are_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They failed when they were first called, after the budget was spent."""
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, "/proc/none")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    with pytest.raises(RuntimeError, match="cannot cache function"):
        numba.njit(cache=True)(from_a_read_only_folder())
    assert compile_loop(from_a_read_only_folder())(21) == 42
