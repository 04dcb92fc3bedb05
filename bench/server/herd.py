"""A fleet that lost its server: how long until everybody is back after a SIGKILL and a restart, and what others notice of it.

``python -m bench.server.herd ADDRESS TOKEN IDENTITY FIRST COUNT`` is a part of the fleet, in a process of its own.
"""

import argparse
import asyncio
import gc
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.server.process import Server, quantile, running
from keepstep.adapters.server_link.address import Address, parse_address
from keepstep.adapters.server_link.backoff import AGENT
from keepstep.adapters.server_link.tls import client_context
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.core import facts as f
from keepstep.core.ids import NodeId, Session
from keepstep.server.state_dir import StateDir
from keepstep.server.views import Jobs
from keepstep.wire import messages as m

AGENTS = 5_000
PROCESSES = 2
"""The fleet is divided among so many: the other side of a handshake costs as much as the server's."""
AT_ONCE = 50
"""Connections under way in each of them, while the fleet comes for the first time."""
BEAT_S = 4.0
WAIT_S = 120.0
LOOK_S = 0.1
GOAL_S = 30.0


class Seen(msgspec.Struct):
    """By one part of the fleet, since all of it was there for the first time. Times: the machine's monotonic clock."""

    up: int
    welcomed_s: list[float]
    """When each was taken back."""
    attempts: int
    vain: int
    """Of them, those that found the door open and ended all the same."""
    refused: list[str]


def section(quick: bool = False) -> str:
    count = 500 if quick else AGENTS
    lines = [
        "## A fleet that comes back",
        "",
        f"{count:,} agents, joined and beating, lose their server by SIGKILL; it is started again at once, on the same",
        "journal. Each dials by the rule of real agents. The server has core 0; the fleet, in several processes, and a tool",
        f"that asks again and again by the same door share the others of a machine of {os.cpu_count()} cores: over TLS their",
        "side of the handshakes costs as much as the server's. Agents check the server's certificate and show the token.",
        "Restart: from the kill until it listens; back: since then, until so many were welcomed. In vain: connections to a",
        "server that had not read its journal yet, or that ended without a welcome all the same. Goal: all are back within",
        f"{GOAL_S:.0f} s, and the tool is never turned away.",
        "",
        "| over | restart | half are back | 99 % | all | most in 1 s | attempts each | in vain | tool waited, p50 | longest |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in ("tcp", "tls"):
        lines.append(_row(kind, count))
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def _row(kind: str, count: int) -> str:
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder, ExitStack() as stack:
        state = StateDir(Path(folder) / "state")
        state.create()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            address = f"{kind}:127.0.0.1:{probe.getsockname()[1]}"
        with running(state, address) as one:
            parts = [stack.enter_context(_part(one, address, first, count)) for first in range(PROCESSES)]
            for part in parts:
                part.joined()
            one.process.kill()
            one.process.wait()
        down_s = time.monotonic()
        with running(state, address) as one:
            up_s, waits_s = time.monotonic(), [_wait_s(one, address)]
            while True:
                seen = [part.look() for part in parts]
                if sum(each.up for each in seen) == count:
                    return _told(kind, seen, up_s, down_s, waits_s)
                if time.monotonic() - up_s > WAIT_S:
                    raise RuntimeError(f"after {WAIT_S:.0f} s some are not back:\n{state.log.read_text()[-2000:]}")
                time.sleep(LOOK_S)
                waits_s.append(_wait_s(one, address))


def _told(kind: str, parts: Sequence[Seen], up_s: float, down_s: float, waits_s: list[float]) -> str:
    if refused := [why for seen in parts for why in seen.refused]:
        raise RuntimeError(f"the server turned {len(refused)} away, the first because: {refused[0]}")
    back_s = sorted(max(0.0, at - up_s) for seen in parts for at in seen.welcomed_s)
    most = max(Counter(int(at) for at in back_s).values())
    attempts = sum(seen.attempts for seen in parts) / len(back_s)
    vain = sum(seen.vain for seen in parts)
    return (
        f"| {kind.upper()} | {up_s - down_s:.1f} s | {quantile(back_s, 0.5):.1f} s | {quantile(back_s, 0.99):.1f} s | "
        f"{back_s[-1]:.1f} s | {most:,} | {attempts:.1f} | {vain} | {quantile(waits_s, 0.5) * 1e3:.0f} ms | "
        f"{max(waits_s) * 1e3:.0f} ms |"
    )


def _wait_s(one: Server, address: str) -> float:
    """Of a new tool, which comes by the same door, until it has its answer. Raises where it is turned away."""
    asked_s = time.monotonic()
    with ToolClient(address, one.state.token(), identity_dir=str(one.state.path / "ca"), timeout_s=WAIT_S) as tool:
        tool.query("jobs", Jobs)
    return time.monotonic() - asked_s


# ---- a part of the fleet, seen from here


class Part:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def joined(self) -> None:
        if self._line() != "joined":
            raise RuntimeError(f"a part of the fleet ended with code {self._process.wait()}")

    def look(self) -> Seen:
        assert self._process.stdin is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._line(), type=Seen)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def _part(one: Server, address: str, number: int, count: int) -> Iterator[Part]:
    first, after = number * count // PROCESSES, (number + 1) * count // PROCESSES
    argv = ["taskset", "-c", "1-63", sys.executable, "-m", "bench.server.herd", address, one.state.token()]
    argv += [str(one.state.path / "ca"), str(first), str(after - first)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Part(process)
    finally:
        process.kill()
        process.communicate()


# ---- the part itself


class Fleet:
    def __init__(self, address: Address, token: str, identity_dir: str) -> None:
        self.address = address
        self.token = token
        self.context = client_context(identity_dir) if address.tls else None
        self.seen = Seen(up=0, welcomed_s=[], attempts=0, vain=0, refused=[])


class ReturningAgent(asyncio.Protocol):
    """Joins once, beats, and comes back by the rule of real agents."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        node, session = NodeId(f"n{number:05}"), Session(f"bench-n{number:05}")
        hello = m.Hello(protocol=m.PROTOCOL, token=fleet.token, role="agent", node=node, session=session)
        parts = tuple(f.NodePart(names=(f"gpu/{g}",), serial=f"S{number}-{g}", model="H100", slot=g) for g in range(8))
        joining = f.AgentJoined(node=node, session=session, boot_id="boot", parts=parts)
        self._hello = m.encode(hello)
        self._joining = m.encode(m.Report(number=1, fact=joining))
        self._transport: asyncio.Transport | None = None
        self._heard = b""
        self._up = False
        self._vain = 0
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self) -> None:
        fleet = self._fleet
        fleet.seen.attempts += 1
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self, fleet.address.host, fleet.address.port, ssl=fleet.context,
                server_hostname=fleet.address.host if fleet.context is not None else None,
            )  # fmt: skip
        except OSError:
            self._again()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._heard = transport, b""
        transport.write(self._hello)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        while len(self._heard) >= 4 and len(self._heard) >= (end := 4 + int.from_bytes(self._heard[:4], "big")):
            message, self._heard = m.decode(self._heard[4:end]), self._heard[end:]
            self._take(message)

    def _take(self, message: m.Message) -> None:
        match message:
            case m.Welcome(acked=acked):
                self._up, self._vain = True, 0
                self._fleet.seen.up += 1
                self._fleet.seen.welcomed_s.append(time.monotonic())
                asyncio.get_running_loop().call_later(random.uniform(0, BEAT_S), self._beat, self._transport)
                if not acked and self._transport is not None:
                    self._transport.write(self._joining)
            case m.Ack() if not self.joined.done():
                self.joined.set_result(None)
            case m.Refused(reason=reason):
                self._fleet.seen.refused.append(reason)
            case _:
                pass

    def _beat(self, transport: asyncio.Transport) -> None:
        if transport is self._transport:
            transport.write(BEAT)
            asyncio.get_running_loop().call_later(BEAT_S, self._beat, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._up:
            self._fleet.seen.up -= 1
        else:
            self._fleet.seen.vain += 1
        self._up, self._transport = False, None
        self._again()

    def _again(self) -> None:
        pause_s = AGENT.pause_s(self._vain, random.random())
        self._vain += 1
        asyncio.get_running_loop().call_later(pause_s, lambda: asyncio.ensure_future(self.connect()))


BEAT = m.encode(m.Beat(generation=0, running_s=BEAT_S, ranks=()))


async def run(fleet: Fleet, first: int, count: int) -> None:
    agents = [ReturningAgent(fleet, number) for number in range(first, first + count)]
    for start in range(0, count, AT_ONCE):
        some = agents[start : start + AT_ONCE]
        await asyncio.gather(*(agent.connect() for agent in some))
        await asyncio.gather(*(agent.joined for agent in some))
    fleet.seen.welcomed_s.clear()
    fleet.seen.attempts = fleet.seen.vain = 0
    print("joined", flush=True)
    while (await asyncio.to_thread(sys.stdin.readline)).strip() == "look":
        print(msgspec.json.encode(fleet.seen).decode(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.server.herd")
    for name in ("address", "token", "identity"):
        parser.add_argument(name)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()
    fleet = Fleet(parse_address(options.address), options.token, options.identity)
    asyncio.run(run(fleet, options.first, options.count))


if __name__ == "__main__":
    main()
