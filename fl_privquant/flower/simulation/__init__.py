"""Engines that run one Flower app: ``inline`` in this process, and ``ray``.

One interface: ``run(server_app, client_app, federation) -> RunResult``.

>>> sorted(ENGINES)
['inline', 'ray']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower.simulation._nodes import BATCH
from fl_privquant.flower.simulation.engine import Engine, Federation, RunResult
from fl_privquant.flower.simulation.inline import InlineEngine
from fl_privquant.flower.simulation.ray import RayEngine

__all__ = [
    "BATCH",
    "ENGINES",
    "Engine",
    "Federation",
    "InlineEngine",
    "RayEngine",
    "RunResult",
    "make_engine",
]

ENGINES: dict[str, Callable[..., Engine]] = {
    "inline": InlineEngine,
    "ray": RayEngine,
}
"""The engines by name."""


def make_engine(name: str, **options: Any) -> Engine:
    """The engine of that name.

    >>> make_engine("inline", threads=2)
    InlineEngine(threads=2, batch=256)
    """
    if name not in ENGINES:
        raise InvalidSpecError("engine", name, f"is not one of {', '.join(sorted(ENGINES))}")
    return ENGINES[name](**options)
