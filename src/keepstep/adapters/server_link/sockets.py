"""Open streams to a server, and the options of both ends' sockets. Owns time-outs of the kernel; must not know what is said."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from keepstep.adapters.server_link.address import Address
from keepstep.wire import messages
from keepstep.wire.messages import Message

FindHost = Callable[[str], Awaitable[str]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
REACH_S = 5.0
"""For the handshake of TCP, which the kernel of the other host answers alone."""
_SHUTDOWN_S = 1.0


async def as_given(host: str) -> str:
    """The host as it is: the C library looks it up."""
    return host


async def open_streams(
    address: Address, context: ssl.SSLContext | None, lease_s: float, find_host: FindHost = as_given
) -> Streams:
    """``context``: where the address is a tls one. Raises OSError where nobody listens or the server is not the one meant."""
    if address.path:
        return await asyncio.open_unix_connection(address.path)
    # A host that is gone is given up early; one that is there may have a whole fleet to shake hands with.
    host = await find_host(address.host)
    async with asyncio.timeout(REACH_S):
        link = await _connected(host, address.port)
    try:
        watch_closely(link, lease_s)
        if context is None:
            return await asyncio.open_connection(sock=link)
        return await asyncio.open_connection(
            sock=link, ssl=context, server_hostname=address.host, ssl_shutdown_timeout=_SHUTDOWN_S
        )
    except BaseException:
        link.close()
        raise


async def _connected(host: str, port: int) -> socket.socket:
    """To the first of the host's addresses that answers."""
    loop, problem = asyncio.get_running_loop(), OSError(f"{host} has no address")
    for family, kind, protocol, _, where in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        link = socket.socket(family, kind, protocol)
        try:
            link.setblocking(False)
            await loop.sock_connect(link, where)
        except BaseException as error:
            link.close()
            if not isinstance(error, OSError):
                raise
            problem = error
            continue
        return link
    raise problem


def watch_closely(link: socket.socket, lease_s: float) -> None:
    """The kernel itself finds a peer whose host is gone within half a lease, whether we send or only wait. No-op for unix."""
    if link.family not in (socket.AF_INET, socket.AF_INET6):
        return
    probe_s = max(1, int(lease_s / 6))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(lease_s * 500))


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Raises EOFError at the end, msgspec.DecodeError or ConnectionError on anything that is not a message."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > messages.MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {size} bytes is announced; at most {messages.MAX_FRAME_BYTES} are taken")
    return messages.decode(await reader.readexactly(size))
