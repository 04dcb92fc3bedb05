"""One look at a dependency: a connection, a request, a name, an object. Owns the protocols; must not judge them.

A look holds no thread and no lock: cancelling it at its deadline ends it.
"""

import asyncio
import os
import ssl
import sys
from dataclasses import dataclass
from functools import cache
from urllib.parse import SplitResult, urlsplit

from keepstep.adapters.dependencies.declared import Dependency
from keepstep.adapters.probe import resolve, run_probe

_HEAD_LIMIT_BYTES = 65_536
_BODY_LIMIT_BYTES = 65_536
_SERVER_ERROR = 500
"""From here on the service itself says that it is not well; anything below, also a refusal, is an answer."""


class NotWell(Exception):
    """It answered, and wrongly. Says how."""


@dataclass(frozen=True)
class Answer:
    ok: bool
    detail: str = ""
    duration_s: float = 0.0
    late: bool = False
    """The deadline passed."""


async def look(dependency: Dependency, node: str) -> Answer:
    """Never raises, and never takes longer than the deadline."""
    clock = asyncio.get_running_loop().time
    started_s = clock()
    try:
        async with asyncio.timeout(dependency.limit_s):
            await _LOOKS[dependency.kind](dependency, node)
    except TimeoutError as error:
        why = str(error) or f"no answer within {dependency.limit_s:g} s"
        return Answer(False, why, clock() - started_s, late=True)
    except (OSError, ValueError, NotWell, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        # ValueError: a host name that no certificate can be of. One that is declared wrongly must not end all other looks.
        return Answer(False, _words(error), clock() - started_s)
    return Answer(True, "", clock() - started_s)


def _words(error: Exception) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection ended before the answer did"
    return str(error) or type(error).__name__


async def _name(dependency: Dependency, node: str) -> None:
    await resolve(dependency.url, dependency.deadline_s)


async def _tcp(dependency: Dependency, node: str) -> None:
    parts = urlsplit(dependency.url)
    assert parts.hostname is not None and parts.port is not None
    _, writer = await _connect(parts.hostname, parts.port, dependency.deadline_s, tls=False)
    writer.close()


async def _http(dependency: Dependency, node: str) -> None:
    await _request(dependency, "GET", urlsplit(dependency.url))


async def _object(dependency: Dependency, node: str) -> None:
    """What is put must come back the same."""
    parts = urlsplit(dependency.url)
    parts = parts._replace(path=f"{parts.path.rstrip('/')}/keepstep-probe-{node}")
    body = os.urandom(16).hex().encode()
    for method, sent in (("PUT", body), ("GET", b""), ("DELETE", b"")):
        status, answer = await _request(dependency, method, parts, sent)
        if status >= 400 and method != "DELETE":
            raise NotWell(f"{method} is answered with status {status}")
        if method == "GET" and body not in answer:
            raise NotWell("another object comes back than was put")


async def _store(dependency: Dependency, node: str) -> None:
    argv = [sys.executable, "-m", "keepstep.adapters.dependencies.store_look", dependency.url]
    said = await run_probe(argv, dependency.limit_s, name=f"store {dependency.url}")
    if said.outcome == "hung":
        raise TimeoutError(said.detail)
    if said.outcome == "failed":
        raise NotWell(said.detail)


_LOOKS = {"http": _http, "tcp": _tcp, "dns": _name, "object": _object, "store": _store}


async def _request(dependency: Dependency, method: str, url: SplitResult, body: bytes = b"") -> tuple[int, bytes]:
    tls = url.scheme == "https"
    assert url.hostname is not None
    reader, writer = await _connect(url.hostname, url.port or (443 if tls else 80), dependency.deadline_s, tls=tls)
    try:
        writer.write(_head(dependency, method, url, len(body)) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        status = _status(head)
        # To the end or to the limit; the end comes with ``Connection: close``.
        answer = b""
        while method == "GET" and len(answer) < _BODY_LIMIT_BYTES and (piece := await reader.read(_BODY_LIMIT_BYTES)):
            answer += piece
    finally:
        writer.close()
    if status >= _SERVER_ERROR:
        raise NotWell(f"{method} is answered with status {status}")
    return status, answer


def _head(dependency: Dependency, method: str, url: SplitResult, size: int) -> bytes:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {url.netloc.rpartition('@')[2]}", "User-Agent: keepstep-agent"]
    lines += ["Connection: close", f"Content-Length: {size}"] if method == "PUT" else ["Connection: close"]
    for name, value in dependency.headers.items():
        lines.append(f"{name}: {os.environ.get(value[1:], '') if value.startswith('$') else value}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")


def _status(head: bytes) -> int:
    fields = head.split(b"\r\n", 1)[0].split()
    if len(fields) < 2 or not fields[0].startswith(b"HTTP/") or not fields[1].isdigit():
        raise NotWell(f"the answer is not HTTP: {head[:60]!r}")
    return int(fields[1])


async def _connect(
    host: str, port: int, deadline_s: float, *, tls: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Tries each address that the name has, as programs do."""
    problem: OSError = OSError(f"{host} has no address")
    for address in await resolve(host, deadline_s):
        try:
            return await asyncio.open_connection(
                address,
                port,
                limit=_HEAD_LIMIT_BYTES,
                ssl=_tls() if tls else None,
                server_hostname=host if tls else None,
            )
        except TimeoutError:
            raise
        except OSError as error:
            problem = error
    raise problem


@cache
def _tls() -> ssl.SSLContext:
    """The certificates of the system, loaded once."""
    return ssl.create_default_context()
