"""The way to the server, for launchers and agents alike: its socket, frames that are read from it, its secret, session names.

Owns the options of the socket and the size of a frame. Must not know what is said, nor connect again: that is each one's own.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping

from keepstep.core.ids import Session
from keepstep.wire import messages
from keepstep.wire.messages import Message

_TOKEN_VARIABLE = "KEEPSTEP_SERVER_TOKEN"
_UNIX_PATH_LIMIT_BYTES = 107
_PORTS = 65_536

FindHost = Callable[[str], Awaitable[str]]


async def as_given(host: str) -> str:
    """The host as it is: the C library looks it up."""
    return host


async def open_connection(
    address: str, lease_s: float, find_host: FindHost = as_given
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError where nobody listens, ValueError where the address is none."""
    check_address(address)
    kind, _, rest = address.partition(":")
    if kind == "unix":
        return await _open_unix(rest)
    host, _, port = rest.rpartition(":")
    reader, writer = await asyncio.open_connection(await find_host(host.strip("[]")), int(port))
    link: socket.socket = writer.get_extra_info("socket")
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel itself finds a server whose host is gone within half a lease, whether we send or only wait.
    probe_s = max(1, int(lease_s / 6))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(lease_s * 500))
    return reader, writer


async def _open_unix(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if len(path.encode()) <= _UNIX_PATH_LIMIT_BYTES:
        return await asyncio.open_unix_connection(path)
    # A path too long for the kernel's address is reached through its directory.
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Raises EOFError at the end, msgspec.DecodeError or ConnectionError on anything that is not a message."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > messages.MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {size} bytes is announced; at most {messages.MAX_FRAME_BYTES} are taken")
    return messages.decode(await reader.readexactly(size))


def check_address(text: str, where: str = "the address") -> None:
    """Raises ValueError that says how one is written."""
    kind, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    if not (kind == "unix" and rest) and not (kind == "tcp" and host and port.isdecimal() and int(port) < _PORTS):
        raise ValueError(f"{where} is {text!r}; write unix:/path/to/socket or tcp:host:port")


def read_token(state_dir: str, environ: Mapping[str, str]) -> str:
    """The secret of the state directory; the environment wins. Raises FileNotFoundError before the server made one."""
    if environ.get(_TOKEN_VARIABLE):
        return environ[_TOKEN_VARIABLE]
    with open(os.path.join(state_dir, "token"), encoding="ascii") as file:
        return file.read().strip()


def new_session() -> Session:
    """Sorts by age, and never comes twice."""
    return Session(f"{int(time.time()):x}-{secrets.token_hex(4)}")
