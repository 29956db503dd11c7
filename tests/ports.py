"""Free ports on loopback, for the servers that tests start."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

# Below the ports that the operating system gives to outgoing connections, as one of those could take a port
# between the moment when it was found free and that when a server listens on it. Ray's workers have those
# up to 19999.
_FIRST, _LAST = 20_000, 32_000
# Workers of pytest-xdist search in ranges of their own.
_RANGES = 32
_SIZE = (_LAST - _FIRST) // _RANGES
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _RANGES
# A port is not given twice before all others have been; where the search begins differs from run to run.
_PLACES = itertools.count(random.SystemRandom().randrange(_SIZE))


def find_free_ports(count: int = 1) -> list[int]:
    """Ports in a row that nobody listens on now; whoever asks next gets others."""
    while True:
        place = next(_PLACES) % _SIZE
        if place + count > _SIZE:
            continue
        ports = [_FIRST + _WORKER * _SIZE + place + number for number in range(count)]
        with contextlib.suppress(OSError), contextlib.ExitStack() as sockets:
            for port in ports:
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            for _ in ports[1:]:
                next(_PLACES)
            return ports
