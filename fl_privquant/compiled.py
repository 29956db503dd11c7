"""Loops that numba compiles: to machine code at the first call, kept on disk, without Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a loop. A division by zero gives infinity or NaN, as numpy's does, and is not checked for."""
    return cast(_Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
