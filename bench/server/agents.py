"""Agents on one core: fact-to-order latency, what the core is used, memory per agent."""

import json
import subprocess
import sys
import time
from collections.abc import Callable

from bench.server.process import Server, quantile, server

BEAT_S = 4.0
"""Below the lease of five seconds. A fleet that beats every five seconds sends a fifth less."""
SIGNALS = {1_000: 150, 10_000: 400}
"""With ten thousand they go on past the first half minute, when a snapshot is taken and memory is looked at."""


GOAL_S = 0.1


def section(quick: bool = False) -> str:
    sizes, beats_s = ((1_000,), (BEAT_S,)) if quick else ((1_000, 10_000), (BEAT_S, 1.0))
    lines = [
        "## Agents on one core",
        "",
        "One server process on core 0, the agents in another process on the other cores, over TCP on the loopback. Order: from",
        "sending `xid.79` of a card to the order to hold it, which is in the journal by then; one signal at a time, beside",
        "everybody's beats. Kept: until the signal itself was acknowledged.",
        f"Goal: 10,000 agents on one core, p99 of an order below {GOAL_S * 1e3:.0f} ms.",
        "",
        "| agents | beat every | beats/s | core used | order p50 | p99 | max | kept p99 | memory per agent | joined in |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in sizes:
        for beat_s in beats_s:
            lines.append(_row(size, beat_s))
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def _row(size: int, beat_s: float) -> str:
    with server() as one:
        empty = one.rss_bytes()
        figures, used, memory = _fleet(one, size, beat_s)
        orders, acks = figures["order_s"], figures["ack_s"]
        if figures["missing"]:
            raise RuntimeError(f"{figures['missing']} signals brought no order within seconds: the machine is too busy")
        milli: Callable[[float], str] = lambda s: f"{s * 1e3:.1f} ms"  # noqa: E731
        return (
            f"| {size:,} | {beat_s:g} s | {figures['beats'] / figures['beating_s']:,.0f} | {used:.0%} | "
            f"{milli(quantile(orders, 0.5))} | {milli(quantile(orders, 0.99))} | {milli(max(orders))} | "
            f"{milli(quantile(acks, 0.99))} | {(memory - empty) / size / 1024:.1f} KiB | {figures['join_s']:.1f} s |"
        )


def _fleet(one: Server, size: int, beat_s: float) -> tuple[dict[str, object], float, int]:
    """Figures of the fleet, share of the core while the signals came, memory at the end."""
    argv = [sys.executable, "-m", "bench.server.fleet", one.address, one.state.token(), "--agents", str(size)]
    argv += ["--beat", str(beat_s), "--signals", str(SIGNALS.get(size, 150))]
    fleet = subprocess.Popen(["taskset", "-c", "1-63", *argv], stdout=subprocess.PIPE, text=True)
    assert fleet.stdout is not None
    began = None
    for line in fleet.stdout:
        told = json.loads(line)
        if "settled" in told:
            began = (one.cpu_s(), time.monotonic())
            continue
        assert began is not None
        used = (one.cpu_s() - began[0]) / (time.monotonic() - began[1])
        memory = one.rss_bytes()
        fleet.wait()
        return told, used, memory
    raise RuntimeError(f"the fleet ended with code {fleet.wait()}:\n{one.state.log.read_text()[-3000:]}")
