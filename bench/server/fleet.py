"""Agents that are sockets only: they join, beat, tell signals and carry orders out at once. Run in a process of its own.

``python -m bench.server.fleet ADDRESS TOKEN --agents N …`` prints one line of JSON when it is done.
"""

import argparse
import asyncio
import gc
import json
import random
import resource
import time

import msgspec

from keepstep.adapters.server_link.address import Address, parse_address
from keepstep.core import facts as f
from keepstep.core.ids import NodeId, ResourceId, Session
from keepstep.wire import messages as m

NODES_PER_RACK = 4
"""Few: signals of one rack within minutes are one trouble of the rack, and that is not what is measured."""
GPUS = 8
CONNECT_AT_ONCE = 200
ORDER_WAIT_S = 10.0


class Figures(msgspec.Struct):
    join_s: float = 0.0
    """Until the facts of the last agent were acknowledged."""
    beats: int = 0
    beating_s: float = 0.0
    order_s: list[float] = []
    """From sending a signal to the order that follows from it."""
    missing: int = 0
    """Signals that no order followed within ORDER_WAIT_S."""
    ack_s: list[float] = []
    """From sending the same signal to its acknowledgement: it is in the journal then."""


class FakeAgent(asyncio.Protocol):
    def __init__(self, number: int, token: str) -> None:
        self.node = NodeId(f"n{number:05}")
        self.session = Session(f"bench-{self.node}")
        self.number = number
        self._token = token
        self._buffer = bytearray()
        self._reports = 0
        self._transport: asyncio.Transport | None = None
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ordered: asyncio.Future[float] | None = None
        self.acked: dict[int, float] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        hello = m.Hello(
            protocol=m.PROTOCOL, token=self._token, role="agent", node=self.node, session=self.session
        )  # fmt: skip
        transport.write(m.encode(hello))
        parts = tuple(
            f.NodePart(names=(f"gpu/0000:{g + 16:02x}:00.0", f"gpu/GPU-{self.number}-{g}"), serial=f"S{self.number}-{g}",
                       model="H100", slot=g)
            for g in range(GPUS)
        )  # fmt: skip
        rack = f"rack-{self.number // NODES_PER_RACK}"
        self.report(
            f.AgentJoined(node=self.node, session=self.session, boot_id="boot", parts=parts, domains={"rack": rack})
        )

    def report(self, fact: f.Fact) -> int:
        self._reports += 1
        self.write(m.encode(m.Report(number=self._reports, fact=fact)))
        return self._reports

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self._take(m.decode(body))

    def _take(self, message: m.Message) -> None:
        match message:
            case m.Ack(number=number):
                self.acked[number] = time.perf_counter()
                if not self.joined.done():
                    self.joined.set_result(None)
            case m.Command(order=order):
                if self.ordered is not None and not self.ordered.done():
                    self.ordered.set_result(time.perf_counter())
                self.report(f.Answered(intent=order.number, outcome=f.Done()))
            case m.Refused(reason=reason):
                self.joined.set_exception(RuntimeError(reason))
            case _:
                pass

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self.joined.done():
            self.joined.set_exception(ConnectionError("the server closed the connection"))


async def connect(number: int, address: Address, token: str) -> FakeAgent:
    loop = asyncio.get_running_loop()
    if address.path:
        _, agent = await loop.create_unix_connection(lambda: FakeAgent(number, token), address.path)
    else:
        _, agent = await loop.create_connection(lambda: FakeAgent(number, token), address.host, address.port)
    return agent


async def beat(agents: list[FakeAgent], every_s: float, figures: Figures) -> None:
    """Spread evenly over the interval, as a fleet's beats are after a while."""
    word = m.encode(m.Beat(generation=0, running_s=every_s, ranks=()))
    began_s, sent = time.perf_counter(), 0
    gap_s = every_s / len(agents)
    while True:
        due = int((time.perf_counter() - began_s) / gap_s)
        for number in range(sent, due):
            agents[number % len(agents)].write(word)
        figures.beats += due - sent
        sent = due
        figures.beating_s = time.perf_counter() - began_s
        await asyncio.sleep(max(gap_s, 0.002))


async def signal(agent: FakeAgent, figures: Figures) -> None:
    """One card falls off the bus; the order is the agent's to hold it."""
    agent.ordered = asyncio.get_running_loop().create_future()
    began_s = time.perf_counter()
    seen = f.SignalSeen(
        resource=ResourceId(f"device/{agent.node}/0"), signal="xid.79", boot_id="boot", part="gpu/0000:10:00.0",
        source="bench", session=agent.session,
    )  # fmt: skip
    number = agent.report(seen)
    try:
        figures.order_s.append(await asyncio.wait_for(agent.ordered, ORDER_WAIT_S) - began_s)
    except TimeoutError:
        figures.missing += 1
    while number not in agent.acked:
        await asyncio.sleep(0.001)
    figures.ack_s.append(agent.acked[number] - began_s)


async def run(options: argparse.Namespace) -> Figures:
    figures, address = Figures(), parse_address(options.address)
    began_s, agents = time.perf_counter(), []
    for first in range(0, options.agents, CONNECT_AT_ONCE):
        numbers = range(first, min(first + CONNECT_AT_ONCE, options.agents))
        some = await asyncio.gather(*(connect(n, address, options.token) for n in numbers))
        await asyncio.gather(*(agent.joined for agent in some))
        agents += some
    figures.join_s = time.perf_counter() - began_s
    beating = asyncio.create_task(beat(agents, options.beat, figures))
    await asyncio.sleep(options.settle)
    print(json.dumps({"settled": True}), flush=True)
    choice = random.Random(1)
    racks = choice.sample(range(len(agents) // NODES_PER_RACK), options.signals)
    for rack in racks:
        await asyncio.sleep(options.gap * choice.uniform(0.5, 1.5))
        await signal(agents[rack * NODES_PER_RACK], figures)
    await asyncio.sleep(options.stay)
    beating.cancel()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.server.fleet")
    parser.add_argument("address")
    parser.add_argument("token")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--beat", type=float, default=4.0)
    parser.add_argument("--settle", type=float, default=2.0)
    parser.add_argument("--signals", type=int, default=100)
    parser.add_argument("--gap", type=float, default=0.05)
    parser.add_argument(
        "--stay", type=float, default=0.0, help="go on beating so long after the last signal, in seconds"
    )
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()
    print(msgspec.json.encode(asyncio.run(run(options))).decode(), flush=True)


if __name__ == "__main__":
    main()
