"""Addresses of a server: ``unix:/path`` and ``tcp:host:port``. Owns their spelling; opens nothing but sockets."""

import socket
from dataclasses import dataclass

from keepstep.server.state_dir import SOCKET_PATH_LIMIT_BYTES


@dataclass(frozen=True)
class Address:
    """``path`` for a unix socket, else ``host`` and ``port``."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"tcp:{self.host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """A connected, blocking socket. Raises OSError."""
        if self.path:
            link = socket.socket(socket.AF_UNIX)
            try:
                link.settimeout(timeout_s)
                link.connect(self.path)
            except OSError:
                link.close()
                raise
            return link
        return socket.create_connection((self.host, self.port), timeout=timeout_s)


def parse_address(text: str) -> Address:
    """Raises ValueError that says what an address looks like."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        if len(rest.encode()) > SOCKET_PATH_LIMIT_BYTES:
            raise ValueError(
                f"the socket path in {text!r} is longer than {SOCKET_PATH_LIMIT_BYTES} bytes; use a shorter one"
            )
        return Address(path=rest)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdecimal() and int(port) < 65536:
        return Address(host=host.strip("[]"), port=int(port))
    raise ValueError(f"{text!r} is not an address; write unix:/path/to/socket or tcp:host:port")
