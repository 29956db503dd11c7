"""Loops that numba compiles: to machine code at the first call, kept on disk if it can, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy"}


def compile_loop(function: _Function) -> _Function:
    """Compile a loop. A division by zero gives infinity or NaN, as numpy's does, and is not checked for."""
    try:
        return cast(_Function, numba.njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:
        # Neither the folder of the package nor the user's cache can be written: each process compiles anew.
        return cast(_Function, numba.njit(**_OPTIONS)(function))
