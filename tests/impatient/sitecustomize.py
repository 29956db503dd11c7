"""Flower's processes look for messages and replies five times a second, not every three seconds.

Python imports this file at its start, from the path of :mod:`tests.deployment` or among the packages of
:mod:`tests.e2e.fresh_environment`. Flower waits for three seconds in the loops in which a SuperNode asks for
messages and a server for replies: a run would wait much longer than it computes.
"""

import time

_sleep = time.sleep


def sleep(seconds: float) -> None:
    """Wait as long as asked for, but not for Flower's three seconds."""
    _sleep(0.2 if seconds == 3 else seconds)


time.sleep = sleep
