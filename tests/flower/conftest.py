import logging

import pytest

import fl_privquant as pq


class _Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    @property
    def text(self):
        return "\n".join(self.lines)


@pytest.fixture
def flower_log():
    """What Flower's logger says during the test."""
    handler = _Messages()
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(scope="session")
def mechanism():
    return pq.design("optm", epsilon=2.0, bits=2)
