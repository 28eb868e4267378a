"""Ports for servers that take a number and cannot be given a listening socket."""

from __future__ import annotations

import random
import socket

# Below the ports that Linux gives to outgoing connections: one of those might take the port before its server listens, and a
# connection to a port of that range may even reach itself.
PORTS = range(12_000, 32_000)


def free_port() -> int:
    """A port of this machine that nobody listens on. Test processes draw at random, so two of them rarely get the same one."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
