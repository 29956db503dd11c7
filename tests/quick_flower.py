"""Flower's processes ask for messages twice a second where they would every three seconds.

For a process that forks others: see :mod:`tests.preloaded`. Flower has no setting for it.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from flwr.superlink.grid import http_grid
from flwr.supernode import start_client_internal

_SECONDS = 0.5


class _Time(ModuleType):
    """The module, with shorter pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, _SECONDS))


for module in (http_grid, start_client_internal):
    module.time = _Time("time")  # type: ignore[attr-defined]
