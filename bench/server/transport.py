"""What one heartbeat costs a server over each transport, and what one new connection costs: CPU time of the server's process.

Equal payload (a launcher's beat of eight ranks, msgpack), equal decoding, equal rate over equally many connections, an empty
server behind each. ``run`` gives the rows; ``python -m bench.server transport`` writes them down.
"""

import asyncio
import importlib.util
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from bench.server.transport_servers import TOKEN
from keepstep.adapters.pki.authority import Authority
from keepstep.adapters.pki.names import Subject
from keepstep.adapters.pki.request import new_key_and_request, store_identity
from keepstep.adapters.server_link.tls import client_context
from keepstep.wire import messages
from keepstep.wire.messages import Beat, Hello, RankVitals

CONNECTIONS = 500
RATE_S = 2_000
"""Heartbeats per second over all connections: 10,000 agents that beat every 5 s."""
LASTS_S = 5.0
CONNECT_AT_ONCE = 50

BEAT = messages.encode(
    Beat(
        generation=3,
        running_s=0.1,
        ranks=tuple(
            RankVitals(
                rank=r, phase="step", step=123_456, idle_s=0.01, phase_s=0.25, step_time_s=0.31, loss=2.345, state="R",
                cpu_s=1234.5,
            )
            for r in range(8)
        ),
    )
)  # fmt: skip
BODY = BEAT[4:]
HELLO = messages.encode(Hello(protocol=messages.PROTOCOL, role="tool", token=TOKEN))
POST = (
    f"POST /beat HTTP/1.1\r\nhost: localhost\r\nauthorization: {TOKEN}\r\ncontent-type: application/msgpack\r\n"
    f"content-length: {len(BODY)}\r\n\r\n"
).encode() + BODY
UPGRADE = (
    f"GET /beats HTTP/1.1\r\nhost: localhost\r\nauthorization: {TOKEN}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
).encode()
# Masked by noughts, as the protocol allows; the server unmasks all the same.
FRAME = bytes([0x82, 0x80 | 126]) + len(BODY).to_bytes(2, "big") + bytes(4) + BODY


class Row(Struct, frozen=True, kw_only=True):
    transport: str
    beat_us: float
    """CPU time of the server for one heartbeat."""
    beats_s: float
    """What one core takes at that."""
    ratio: float
    """To the first row."""
    connect_us: float
    """CPU time of the server for one new client, until it may speak."""


class Wire(Struct, frozen=True, kw_only=True):
    kind: str
    title: str
    hello: bytes
    beat: bytes


WIRES = (
    Wire(kind="tcp", title="framed msgpack over TCP", hello=HELLO, beat=BEAT),
    Wire(kind="tls", title="framed msgpack over TLS 1.3, mutual", hello=HELLO, beat=BEAT),
    Wire(kind="http", title="HTTP/1.1 POST, kept alive: uvicorn, raw ASGI", hello=b"", beat=POST),
    Wire(kind="websocket", title="WebSocket: uvicorn, raw ASGI", hello=UPGRADE, beat=FRAME),
)


def run(lasts_s: float = LASTS_S) -> list[Row]:
    """One after another on the same machine. Transports whose library is not installed are left out."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        context = _identity(folder)
        for wire in WIRES:
            if wire.kind == "websocket" and importlib.util.find_spec("websockets") is None:
                continue
            with _server(wire.kind, folder) as (port, cpu_s):
                tls = context if wire.kind == "tls" else None
                beat_us, connect_us = asyncio.run(_measure(wire, port, tls, cpu_s, lasts_s))
            first = rows[0].beat_us if rows else beat_us
            rows.append(
                Row(
                    transport=wire.title, beat_us=beat_us, beats_s=1e6 / beat_us, ratio=beat_us / first,
                    connect_us=connect_us,
                )
            )  # fmt: skip
    return rows


def table(rows: list[Row]) -> str:
    """Markdown."""
    parser = "httptools" if importlib.util.find_spec("httptools") else "h11"
    lines = [
        f"| transport (HTTP parsed by {parser}) | µs of server CPU per heartbeat | heartbeats/s on a core | ratio | "
        "µs of server CPU per new client |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.transport} | {r.beat_us:.0f} | {r.beats_s:,.0f} | {r.ratio:.1f} | {r.connect_us:,.0f} |" for r in rows
    ]
    return "\n".join(lines)


def section(quick: bool = False) -> str:
    """For ``python -m bench.server``."""
    return (
        "## What a heartbeat costs over each transport\n\n"
        f"A beat of eight ranks ({len(BODY)} bytes of msgpack), {RATE_S:,} a second over {CONNECTIONS} connections, an empty "
        "server behind each;\nCPU time of the server's process. The peers are without TLS.\n\n"
        f"{table(run(1.0 if quick else LASTS_S))}"
    )


def _identity(folder: Path) -> ssl.SSLContext:
    authority = Authority.open(folder / "ca")
    key, request = new_key_and_request("bench")
    signed = authority.sign(request, Subject(role="agent", name="bench"), time.time(), 3600.0)
    store_identity(folder / "identity", key, signed.certificate, authority.certificate_pem)
    return client_context(str(folder / "identity"))


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[tuple[int, Callable[[], float]]]:
    """Its port, and how to read its CPU time so far."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.server.transport_servers", kind, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        tasks = Path(f"/proc/{process.pid}/task")
        yield port, lambda: sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
    finally:
        process.kill()
        process.communicate()


class Client(asyncio.Protocol):
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._wire.hello:
            transport.write(self._wire.hello)
        else:
            self.ready.set_result(None)

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionError("the server hung up"))


async def _measure(
    wire: Wire, port: int, tls: ssl.SSLContext | None, cpu_s: Callable[[], float], lasts_s: float
) -> tuple[float, float]:
    loop = asyncio.get_running_loop()

    async def connect() -> Client:
        name = "localhost" if tls else None
        _, client = await loop.create_connection(lambda: Client(wire), "127.0.0.1", port, ssl=tls, server_hostname=name)
        await client.ready
        return client

    await connect()
    before_s = cpu_s()
    clients = []
    for _ in range(CONNECTIONS // CONNECT_AT_ONCE):
        clients += await asyncio.gather(*(connect() for _ in range(CONNECT_AT_ONCE)))
    connect_us = (cpu_s() - before_s) / CONNECTIONS * 1e6
    await _beat(clients, wire.beat, 1.0)
    before_s = cpu_s()
    beats = await _beat(clients, wire.beat, lasts_s)
    beat_us = (cpu_s() - before_s) / beats * 1e6
    for client in clients:
        client.transport.abort()
    return beat_us, connect_us


async def _beat(clients: list[Client], beat: bytes, lasts_s: float) -> int:
    """At ``RATE_S``, one connection after another. Returns how many; a while later all of them have been read."""
    began_s, sent = time.monotonic(), 0
    while sent < RATE_S * lasts_s:
        due = min(int((time.monotonic() - began_s) * RATE_S), int(RATE_S * lasts_s))
        for number in range(sent, due):
            clients[number % len(clients)].transport.write(beat)
        sent = max(sent, due)
        await asyncio.sleep(0.0005)
    await asyncio.sleep(0.2)
    return sent
