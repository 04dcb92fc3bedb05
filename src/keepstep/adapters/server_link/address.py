"""Addresses of a server: ``unix:/path``, ``tcp:host:port``, ``tls:host:port``. Owns their spelling and what may be said in the
clear; opens nothing but plain sockets."""

import ipaddress
import socket
from dataclasses import dataclass
from typing import Literal

PATH_LIMIT_BYTES = 107
"""Longest path that the kernel takes for a unix socket."""
FORMS = "unix:/path/to/socket, tls:host:port, or tcp:host:port on loopback"
_PORTS = 65_536


@dataclass(frozen=True)
class Address:
    """``path`` for a unix socket, else ``host`` and ``port``."""

    kind: Literal["unix", "tcp", "tls"]
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def tls(self) -> bool:
        return self.kind == "tls"

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}:{host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """A connected, blocking socket, without TLS. Raises OSError."""
        if not self.path:
            return socket.create_connection((self.host, self.port), timeout=timeout_s)
        link = socket.socket(socket.AF_UNIX)
        try:
            link.settimeout(timeout_s)
            link.connect(self.path)
        except OSError:
            link.close()
            raise
        return link


def parse_address(text: str, where: str = "the address") -> Address:
    """Raises ValueError that says how one is written. Words in the clear are for this machine only."""
    kind, _, rest = text.strip().partition(":")
    if kind == "unix" and rest:
        if len(rest.encode()) > PATH_LIMIT_BYTES:
            raise ValueError(f"the socket path in {text!r} is longer than {PATH_LIMIT_BYTES} bytes; use a shorter one")
        return Address("unix", path=rest)
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if kind not in ("tcp", "tls") or not host or not (port.isascii() and port.isdecimal()) or int(port) >= _PORTS:
        raise ValueError(f"{where} is {text!r}, which is not an address; write {FORMS}")
    if kind == "tcp" and not is_loopback(host):
        raise ValueError(
            f"{where} is {text!r}: tcp: is in the clear and for loopback only; between machines write "
            f"tls:{rest} (a node gets its certificate by `keepstep join`)"
        )
    return Address("tls" if kind == "tls" else "tcp", host=host, port=int(port))


def parse_addresses(text: str, where: str = "the address") -> tuple[Address, ...]:
    """One or more, with commas between them: the replicas of one installation. Raises ValueError like parse_address."""
    return tuple(dict.fromkeys(parse_address(one, where) for one in text.split(",")))


def is_loopback(host: str) -> bool:
    """By its spelling: a name that a resolver would have to look up is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
