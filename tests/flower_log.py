"""What Flower's logger says, as lines."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


class LogLines(logging.Handler):
    """Keeps every message."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @property
    def text(self) -> str:
        """All of them."""
        return "\n".join(self.lines)


@contextlib.contextmanager
def listen() -> Iterator[LogLines]:
    """Hear what Flower's logger says, from the level INFO on, during the ``with`` block."""
    handler, logger = LogLines(), logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
