"""What the wiring tells the HTTP side. Owns no behaviour."""

from msgspec import Struct

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class WebOptions(Struct, frozen=True, kw_only=True):
    owner_token: str
    """Secret of the state directory: whoever shows it is the owner. Sessions are signed with a key derived from it."""
    hosts: tuple[str, ...] = ()
    """Names, beside those of the loopback, that the server is called by; a request to another one is refused. ``*``: any."""
    secure: bool = False
    """It is served over TLS: the cookie says so, and browsers are told to come back that way."""
    request_max_bytes: int = 1 << 20
    readers_max: int = 256
    """Of live events at a time."""
    connections_max: int = 2000
    """One more is closed at once: what programs of the fleet need goes over the wire, not over HTTP."""
    patience_s: float = 10.0
    """Whoever connects and sends no whole request is cut off after one to two times that."""

    def known_host(self, host: str) -> bool:
        return "*" in self.hosts or host.lower() in LOOPBACK or host.lower() in self.hosts
