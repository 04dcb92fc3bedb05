"""Sockets that a server listens on. Owns their files, their modes, and which of them need a certificate."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from keepstep.adapters.server_link.address import Address, parse_address
from keepstep.server.config import HttpAddress
from keepstep.server.connection import Connection, Hub
from keepstep.server.state_dir import StateDir

log = logging.getLogger("keepstep.server")

BACKLOG = 4096
"""A fleet that comes back after a restart waits in the kernel, not at a closed door."""
ACCEPT_AT_ONCE = 64
"""Between two accepts of so many, everybody who is connected already is heard: a handshake of TLS takes over a millisecond."""
HANDSHAKE_S = 10.0


class Listening:
    """Open once; ``close`` removes what it made."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self.addresses: list[Address] = []
        """With the ports that were really taken."""

    async def open(
        self, wanted: Sequence[Address], state: StateDir, hub: Hub, context: Callable[[], ssl.SSLContext]
    ) -> None:
        """A socket file that is already there is a dead server's: the lock says that none lives. Raises ValueError, and OSError
        for a certificate that cannot be read."""
        for address in _with_own_door(wanted, state):
            tls = context() if address.tls else None
            try:
                server = await _listen(address, hub, tls)
            except OSError as error:
                number = error.errno or 0
                why = os.strerror(number) if number in errno.errorcode else str(error)
                raise ValueError(f"cannot listen on {address}: {why}; name another one with --listen") from error
            port = 0 if address.path else server.sockets[0].getsockname()[1]
            taken = address if address.path else Address(kind=address.kind, host=address.host, port=port)
            _queue(server)
            self._servers.append(server)
            self.addresses.append(taken)

    def close(self) -> None:
        for server, address in zip(self._servers, self.addresses, strict=True):
            server.close()
            if address.path:
                Path(address.path).unlink(missing_ok=True)


async def _listen(address: Address, hub: Hub, tls: ssl.SSLContext | None) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if not address.path:
        return await loop.create_server(
            lambda: Connection(hub), address.host, address.port, backlog=ACCEPT_AT_ONCE, ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_S if tls else None,
        )  # fmt: skip
    made = await loop.create_unix_server(lambda: Connection(hub), _prepared(address.path), backlog=ACCEPT_AT_ONCE)
    Path(address.path).chmod(0o600)
    return made


def _queue(server: asyncio.Server) -> None:
    """asyncio takes one number for both: how many it accepts at a time, and how many the kernel keeps waiting."""
    for link in server.sockets:
        with socket.socket(fileno=os.dup(link.fileno())) as same:
            same.listen(BACKLOG)


def _with_own_door(wanted: Sequence[Address], state: StateDir) -> Sequence[Address]:
    """Where nothing but TLS was asked for, commands of this machine, which has no certificate, come by the socket in the state
    directory. First: it is the address that they find."""
    return wanted if any(not address.tls for address in wanted) else (parse_address(state.default_address()), *wanted)


def _prepared(path: str) -> str:
    """A place for a socket file in a directory that is ours. Raises ValueError."""
    where = Path(path)
    where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if where.parent.stat().st_uid != os.getuid():
        raise ValueError(f"{where.parent} belongs to somebody else; use --listen unix:/path in a directory of yours")
    where.unlink(missing_ok=True)
    return path


def bind(wanted: HttpAddress) -> list[socket.socket]:
    """Sockets for HTTP. A port that is taken is replaced by any free one where nobody insists. Raises ValueError."""
    try:
        return [_bound(wanted.host, wanted.port)]
    except OSError as error:
        why = f"cannot listen on {url_host(wanted.host)}:{wanted.port} for HTTP: {error.strerror or error}"
        if wanted.must:
            raise ValueError(f"{why}; name another one with --http HOST:PORT, or --http off") from error
        log.info("%s; any free port does", why)
        return bind(replace(wanted, port=0, must=True))


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
