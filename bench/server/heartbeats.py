"""Heartbeats on one core: how many a second, what each costs, and what a fact waits beside them.

``python -m bench.server.heartbeats ADDRESS TOKEN …`` is the other side, in a process of its own.
"""

import argparse
import asyncio
import subprocess
import sys
import time

import msgspec

from bench.server.fleet import FakeAgent, connect
from bench.server.process import Server, quantile, server
from keepstep.adapters.server_link.address import parse_address
from keepstep.core import facts as f
from keepstep.wire import messages as m

AGENTS = 200
BEATS = 1_000
"""Of each agent in the flood."""
PROBES = 200
EVERY_S = 5.0
PACE_S = 10_000
"""Beats a second at which a fact's latency is measured: 10,000 agents, one a second."""

BEAT = m.encode(m.Beat(generation=0, running_s=1.0, ranks=()))


class Flood(msgspec.Struct):
    beats_s: float
    """Beats a second, as fast as they are taken."""
    ack_s: list[float]
    """From sending a fact to its acknowledgement, beside PACE_S beats a second."""


def section(quick: bool = False) -> str:
    with server() as one:
        before = one.cpu_s()
        flood = _other_side(one, BEATS // 10 if quick else BEATS)
        cost_s = one.cpu_s() - before
    limit_s = decoding_s()
    return "\n".join(
        [
            "## Heartbeats on one core",
            "",
            f"{AGENTS} agents send as fast as they are read, over TCP on the loopback. The limit is a core that only cuts",
            "frames and decodes them, without a socket and without a server.",
            "",
            "| | beats/s | of the limit |",
            "|---|---:|---:|",
            f"| server | {flood.beats_s:,.0f} | {flood.beats_s * limit_s:.0%} |",
            f"| cutting and decoding alone | {1 / limit_s:,.0f} | |",
            "",
            f"With a beat every {EVERY_S:g} s a core is full at {flood.beats_s * EVERY_S:,.0f} agents that tell nothing else.",
            "",
            f"Beside {PACE_S:,} beats a second a fact is in the journal after {quantile(flood.ack_s, 0.5) * 1e3:.1f} ms (p50), "
            f"{quantile(flood.ack_s, 0.99) * 1e3:.1f} ms (p99). The server used {cost_s:.1f} s of its core for all of it.",
            "",
        ]
    )


def decoding_s() -> float:
    """Of one beat."""

    many = BEAT * 1000
    decode, count, began_s = m.decode, 0, time.perf_counter()
    while time.perf_counter() - began_s < 1.0:
        position = 0
        while position < len(many):
            size = int.from_bytes(many[position : position + 4], "big")
            decode(many[position + 4 : position + 4 + size])
            position += 4 + size
        count += 1000
    return (time.perf_counter() - began_s) / count


def _other_side(one: Server, beats: int) -> Flood:
    argv = ["taskset", "-c", "1-63", sys.executable, "-m", "bench.server.heartbeats", one.address, one.state.token()]
    argv += ["--beats", str(beats)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.stderr}\n{one.state.log.read_text()[-3000:]}")
    return msgspec.json.decode(done.stdout, type=Flood)


async def _run(address: str, token: str, beats: int) -> Flood:
    agents = list(await asyncio.gather(*(connect(n, parse_address(address), token) for n in range(AGENTS))))
    await asyncio.gather(*(agent.joined for agent in agents))
    began_s = time.perf_counter()
    for agent in agents:
        agent.write(BEAT * beats)
    await asyncio.gather(*(_told(agent) for agent in agents))
    beats_s = AGENTS * beats / (time.perf_counter() - began_s)
    pace = asyncio.create_task(_pace(agents, PACE_S))
    await asyncio.sleep(0.5)
    ack_s = []
    for number in range(PROBES):
        asked_s = time.perf_counter()
        await _told(agents[number % AGENTS])
        ack_s.append(time.perf_counter() - asked_s)
        await asyncio.sleep(0.02)
    pace.cancel()
    return Flood(beats_s, ack_s)


async def _told(agent: FakeAgent) -> None:
    """Behind all of its beats: one fact, until it is acknowledged."""
    seen = f.CoverageChanged(node=agent.node, session=agent.session, source="bench", state="seen")
    number = agent.report(seen)
    while max(agent.acked, default=0) < number:
        await asyncio.sleep(0.0005)


async def _pace(agents: list[FakeAgent], beats_s: float) -> None:
    began_s, sent = time.perf_counter(), 0
    while True:
        due = int((time.perf_counter() - began_s) * beats_s)
        for number in range(sent, due):
            agents[number % len(agents)].write(BEAT)
        sent = due
        await asyncio.sleep(0.002)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.server.heartbeats")
    parser.add_argument("address")
    parser.add_argument("token")
    parser.add_argument("--beats", type=int, default=BEATS)
    options = parser.parse_args()
    print(msgspec.json.encode(asyncio.run(_run(options.address, options.token, options.beats))).decode())


if __name__ == "__main__":
    main()
