"""Thousands of agents in one process: bare sockets that come back by the very rule that real agents follow.

A program: ``python herd.py ADDRESS TOKEN COUNT IDENTITY_DIR``. It connects them all, prints ``up``, and from then on answers
each line ``look`` with one of JSON: how many are connected, who was refused, which connections were in vain.
"""

import asyncio
import json
import random
import ssl
import sys
import time
from dataclasses import dataclass, field

from keepstep.adapters.server_link.address import Address, parse_address
from keepstep.adapters.server_link.backoff import AGENT
from keepstep.adapters.server_link.tls import client_context
from keepstep.core.ids import NodeId, Session
from keepstep.wire import messages
from keepstep.wire.messages import Beat, Hello, Refused, Welcome

BEAT_S = 1.0
RAMP = 200
"""Connections under way at the beginning; nothing is measured there."""


@dataclass
class Fleet:
    address: Address
    token: str
    context: ssl.SSLContext | None
    up: int = 0
    refused: list[str] = field(default_factory=list)
    beats: int = 0
    vain_s: list[float] = field(default_factory=list)
    """When connections were made that ended without a welcome."""
    attempts: int = 0


class FakeAgent(asyncio.Protocol):
    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._hello = messages.encode(
            Hello(
                protocol=messages.PROTOCOL, role="agent", token=fleet.token, node=NodeId(f"n{number}"),
                session=Session(f"1-{number:08x}"),
            )
        )  # fmt: skip
        self._transport: asyncio.Transport | None = None
        self._heard = b""
        self._is_up = False
        self._made_s = 0.0
        self._vain = 0

    async def connect(self) -> None:
        loop, address = asyncio.get_running_loop(), self._fleet.address
        self._fleet.attempts += 1
        try:
            name = address.host if address.tls else None
            await loop.create_connection(
                lambda: self, address.host, address.port, ssl=self._fleet.context, server_hostname=name
            )
        except OSError:
            self._again()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._made_s = time.monotonic()
        self._transport = transport
        self._heard = b""
        transport.write(self._hello)

    def data_received(self, data: bytes) -> None:
        if self._is_up:
            return
        self._heard += data
        size = int.from_bytes(self._heard[:4], "big")
        if len(self._heard) < 4 + size:
            return
        first = messages.decode(self._heard[4 : 4 + size])
        if isinstance(first, Welcome):
            self._is_up, self._vain = True, 0
            self._fleet.up += 1
            asyncio.get_running_loop().call_later(random.uniform(0, BEAT_S), self._beat)
        elif isinstance(first, Refused):
            self._fleet.refused.append(first.reason)

    def _beat(self) -> None:
        if self._is_up and self._transport is not None:
            self._transport.write(BEAT)
            self._fleet.beats += 1
            asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_up:
            self._fleet.up -= 1
        else:
            self._fleet.vain_s.append(self._made_s)
        self._is_up, self._transport = False, None
        self._again()

    def _again(self) -> None:
        pause_s = AGENT.pause_s(self._vain, random.random())
        self._vain += 1
        asyncio.get_running_loop().call_later(pause_s, lambda: asyncio.ensure_future(self.connect()))


BEAT = messages.encode(Beat(generation=0, running_s=BEAT_S, ranks=()))


async def main(address: str, token: str, count: str, identity_dir: str) -> None:
    at = parse_address(address)
    fleet = Fleet(at, token, client_context(identity_dir) if at.tls else None)
    agents = [FakeAgent(fleet, number) for number in range(int(count))]
    for first in range(0, len(agents), RAMP):
        await asyncio.gather(*(agent.connect() for agent in agents[first : first + RAMP]))
    while fleet.up < len(agents):
        await asyncio.sleep(0.01)
    fleet.vain_s.clear()
    fleet.attempts = 0
    print("up", flush=True)
    while (await asyncio.to_thread(sys.stdin.readline)).strip() == "look":
        seen = {
            "up": fleet.up, "refused": fleet.refused, "vain_s": fleet.vain_s, "beats": fleet.beats, "attempts": fleet.attempts,
        }  # fmt: skip
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
