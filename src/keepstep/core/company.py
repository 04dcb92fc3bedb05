"""What else was seen around the end of a rank: signals of its device, outages of what jobs need. Judges no rank."""

from keepstep.core import facts as f
from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.fault import Fault
from keepstep.core.ids import ResourceId, node_of
from keepstep.core.incident import Evidence
from keepstep.core.observed import JOURNAL
from keepstep.core.policy import Policy
from keepstep.core.world import World

AROUND_S = 60.0
OUTAGE_S = 420.0
"""An outage of which nothing was heard for so long is over: agents say it again every five minutes while it lasts."""

_OUTSIDE = (
    "connection",
    "timeout",
    "oserror",
    "ioerror",
    "http",
    "ssl",
    "gaierror",
    "clienterror",
    "storage",
    "stale",
    "remote",
)
"""What an error of something outside is called; parts of exception names, lower case."""


def signals_around(device: ResourceId, world: World, policy: Policy, at_s: float) -> list[Evidence]:
    """What the device, or its node as a whole, signalled around a moment. Not what other devices did."""
    node = node_of(device)
    told = []
    for seen in world.recent.get(node, ()):
        assert seen.at_s is not None and seen.clock == JOURNAL
        owner = world.slots.get((node, seen.part)) or world.slots.get((node, world.parts.canonical(node, seen.part)))
        if abs(seen.at_s - at_s) > AROUND_S or (owner is not None and owner != device):
            continue
        row = policy.catalog.row(seen.signal)
        where = f"{node}/{seen.part}" if seen.part else node
        text = f"{where}: {seen.signal}: {row.text}"
        told.append(
            Evidence(
                entry=seen.entry, source=seen.source or "signal", text=text, supports=row.verdict is not Verdict.BENIGN
            )
        )
    return told


def outage(fact: f.RankExited, world: World, now_s: float) -> Fault | None:
    """The open outage that explains an error of a rank, if its error is of that kind."""
    if fact.error is None or not any(word in fact.error.kind.lower() for word in _OUTSIDE):
        return None
    return next((fault for fault in outages(world, now_s) if fault.nature.verdict is Verdict.FAULTY), None)


def outages(world: World, now_s: float) -> list[Fault]:
    """Dependencies that do not answer now."""
    found = [world.faults[x] for x in world.open_faults]
    return [x for x in found if x.nature.scope is Scope.DEPENDENCY and now_s - x.last_s <= OUTAGE_S]
