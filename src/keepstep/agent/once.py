"""One look for a person: sources run for some seconds, then what was seen is printed. Owns the page; talks to no server."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from keepstep.adapters.local import procfs
from keepstep.agent.agent import keep_running
from keepstep.agent.inventory import Inventory
from keepstep.agent.outlet import Board
from keepstep.agent.settings import Settings
from keepstep.core.catalog import CATALOG
from keepstep.core.facts import Fact, SignalSeen
from keepstep.ports import Source

_LEAST_S = 1.0


async def look_once(settings: Settings, sources: Sequence[Source], wait_s: float, *, as_json: bool) -> int:
    """Ends earlier than ``wait_s`` only where every source says that there is nothing for it here."""
    facts: list[Fact] = []
    inventory = Inventory(settings.node, settings.devices)
    board = Board(settings, inventory, procfs.boot_id(), facts.append)
    tasks = [asyncio.ensure_future(keep_running(source, board)) for source in sources]
    if tasks:
        await asyncio.wait(tasks, timeout=max(wait_s, _LEAST_S))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    board.finish()
    signals = [fact for fact in facts if isinstance(fact, SignalSeen)]
    view = _view(settings, inventory, board, signals)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(view), indent=2).decode() + "\n")
    else:
        sys.stdout.write("\n".join(_page(view)) + "\n")
    return 0


def _view(settings: Settings, inventory: Inventory, board: Board, signals: Sequence[SignalSeen]) -> dict[str, Any]:
    return {
        "node": settings.node,
        "boot_id": procfs.boot_id(),
        "coverage": [
            {"source": name, "state": state, "detail": detail} for name, (state, detail) in board.coverage.items()
        ],
        "parts": [msgspec.to_builtins(part) for part in inventory.parts()],
        "signals": [_signal(fact) for fact in signals],
        "levels": [
            {"part": part, "counter": counter, "value": value} for (part, counter), value in board.levels.items()
        ],
    }


def _signal(fact: SignalSeen) -> dict[str, Any]:
    row = CATALOG.row(fact.signal)
    return {
        "signal": fact.signal, "resource": fact.resource, "part": fact.part, "count": fact.count,
        "class": row.failure_class, "scope": row.scope.value, "verdict": row.verdict.value,
        "job_urgency": row.urgency.value, "detail": fact.detail, "attributes": fact.attributes, "source": fact.source,
    }  # fmt: skip


def _page(view: dict[str, Any]) -> list[str]:
    lines = [f"node {view['node']}, boot {view['boot_id']}", "", "sources"]
    lines += [f"  {one['source']:14} {one['state']:8} {one['detail']}".rstrip() for one in view["coverage"]]
    lines += ["", "signals" if view["signals"] else "no signals"]
    for one in view["signals"]:
        times = f" ×{one['count']}" if one["count"] > 1 else ""
        old = ", before this look" if "old" in one["attributes"] else ""
        lines.append(f"  {one['signal']}{times} on {one['part'] or one['resource']}: {one['verdict']}{old}")
        lines.append(f"      {one['detail']}")
    if view["levels"]:
        lines += ["", "levels"]
        lines += [f"  {one['part'] or 'node':28} {one['counter']:28} {one['value']:g}" for one in view["levels"]]
    return lines
