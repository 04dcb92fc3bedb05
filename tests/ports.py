"""Ports for a test that binds one later than it chooses it, or again and again.

Below those that the kernel gives away, to listeners that want any port as to connections that go out: what was free stays free.
"""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 12_000
_DEFAULT_END = 32_768


def lasting_port(host: str = "127.0.0.1") -> int:
    """One that nobody listens on, and that nobody is given unless he asks for that very number."""
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _DEFAULT_END
    chosen = random.SystemRandom()  # workers and repeated runs must not agree, whatever a test has seeded
    while True:
        port = chosen.randrange(_FIRST, end) if end > _FIRST else 0
        try:
            with socket.create_server((host, port)) as found:
                return int(found.getsockname()[1])
        except OSError:
            continue
