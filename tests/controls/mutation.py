"""A module with one thing changed: its own source, run again with one piece of text replaced."""

from __future__ import annotations

import inspect
from types import ModuleType

# Compiled loops run as Python here: nothing to compile for a change that is used once.
_COMPILED = "from fl_privquant._compiled import compile_loop\n"
_AS_PYTHON = "def compile_loop(function):\n    return function\n"


def mutated(module: ModuleType, old: str, new: str) -> ModuleType:
    """The module with ``old`` replaced by ``new``; if ``old`` is gone, the control needs a new place."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{module.__name__} has {old!r} {source.count(old)} times, not once"
    changed = ModuleType(module.__name__)
    changed.__file__ = module.__file__
    text = source.replace(old, new).replace(_COMPILED, _AS_PYTHON)
    exec(compile(text, f"{module.__name__}, with {new!r}", "exec"), changed.__dict__)
    return changed
