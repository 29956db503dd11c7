"""Free ports on loopback, for the servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket

# Below the ports that the operating system gives to outgoing connections, as one of those could take a port
# between the moment when it was found free and that when a server listens on it. Ray's workers have those
# up to 19999.
_FIRST, _LAST = 20_000, 32_000


def find_free_ports(count: int = 1) -> list[int]:
    """Ports in a row that nobody listens on now; tests that run side by side get others."""
    while True:
        first = random.SystemRandom().randrange(_FIRST, _LAST - count)
        ports = list(range(first, first + count))
        with contextlib.suppress(OSError), contextlib.ExitStack() as sockets:
            for port in ports:
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            return ports
