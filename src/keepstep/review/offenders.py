"""What fails again and again, what is being repaired, and whether the rules were right. Pure."""

import math
from collections.abc import Sequence

from msgspec import Struct, field

from keepstep.core.preemptions import Precision
from keepstep.review.cost import NAMES_TOLD
from keepstep.review.estimates import poisson_tail, share, spread
from keepstep.review.figures import Fleet, Lemon, Repair, Repairs, Trust
from keepstep.review.goodput import HOUR_S
from keepstep.review.records import FaultRecord, IncidentRecord

AGAIN = 2
"""Root causes that make an offender."""
_IN_THE_PLACE = ("device", "host_hardware", "host_software", "network", "power")


class _Held(Struct):
    node: str = ""
    rack: str = ""
    failures: int = 0
    incidents: int = 0
    lost_gpu_s: list[float] = field(default_factory=list)
    classes: dict[str, None] = field(default_factory=dict)
    moments: list[float] = field(default_factory=list)

    def note(self, at_s: float, failure_class: str, node: str, rack: str) -> None:
        self.moments.append(at_s)
        self.node, self.rack = node or self.node, rack or self.rack
        if failure_class:
            self.classes[failure_class] = None


def lemons_of(
    faults: Sequence[IncidentRecord], causes: Sequence[FaultRecord], fleet: Fleet
) -> tuple[Lemon, ...]:  # fmt: skip
    """Worst first. A root cause counts once; an incident counts for itself where no root cause is known for it."""
    held: dict[tuple[str, str], _Held] = {}
    known = {x.id for x in causes}
    for cause in sorted(causes, key=lambda x: (x.opened_s, x.id)):
        if cause.cause in _IN_THE_PLACE:
            for key in _subjects((cause.serial,), (cause.node,)):
                item = held.setdefault(key, _Held())
                item.failures += 1
                item.note(cause.opened_s, cause.failure_class, cause.node, cause.rack)
    for incident in sorted(faults, key=lambda x: (x.opened_s, x.id)):
        if incident.cause in _IN_THE_PLACE:
            _of_incident(held, incident, counts=incident.fault not in known)
    total = sum(item.failures for (kind, _), item in held.items() if kind == "node")
    told = [_lemon(kind, name, item, total, fleet) for (kind, name), item in held.items() if item.failures >= AGAIN]
    return tuple(sorted(told, key=lambda x: (-x.failures, -x.lost_gpu_h, x.kind, x.name))[:NAMES_TOLD])


def _of_incident(held: dict[tuple[str, str], _Held], incident: IncidentRecord, counts: bool) -> None:
    one = incident.nodes[0] if len(incident.nodes) == 1 else ""
    for key in _subjects(incident.serials, incident.nodes):
        item = held.setdefault(key, _Held())
        item.failures += counts
        item.incidents += 1
        item.lost_gpu_s.append(incident.lost_gpu_s)
        item.note(incident.opened_s, incident.failure_class, key[1] if key[0] == "node" else one, _rack(incident))


def _rack(incident: IncidentRecord) -> str:
    return incident.racks[0] if len(incident.racks) == 1 else ""


def _subjects(serials: Sequence[str], nodes: Sequence[str]) -> list[tuple[str, str]]:
    return [("serial", x) for x in serials if x] + [("node", x) for x in nodes if x]


def _lemon(kind: str, name: str, item: _Held, total: int, fleet: Fleet) -> Lemon:
    p = None
    if kind == "node" and fleet.nodes:
        p = min(1.0, fleet.nodes * poisson_tail(item.failures, total / fleet.nodes))
    return Lemon(
        kind=kind,
        name=name,
        node=item.node,
        rack=item.rack,
        failures=item.failures,
        incidents=item.incidents,
        lost_gpu_h=math.fsum(item.lost_gpu_s) / HOUR_S,
        classes=tuple(item.classes),
        first_s=min(item.moments),
        last_s=max(item.moments),
        p=p,
    )


def repairs_of(repairs: Sequence[Repair], since_s: float, until_s: float) -> Repairs:
    """Orders that were open at some time in the span."""
    told = [x for x in repairs if x.opened_s < until_s and (x.closed_s is None or x.closed_s >= since_s)]
    ordered = sorted(told, key=lambda x: (x.opened_s, x.resource))
    waiting = [x for x in ordered if x.closed_s is None]
    left = [x for x in ordered if x.closed_s is not None]
    return Repairs(
        opened=sum(since_s <= x.opened_s for x in ordered),
        open=len(waiting),
        turnaround_s=spread([x.closed_s - x.opened_s for x in left if x.closed_s is not None]),
        returned=share(sum(x.in_service_s is not None for x in left), len(left)),
        oldest_s=until_s - waiting[0].opened_s if waiting else None,
        orders=tuple(reversed(ordered[-NAMES_TOLD:])),
    )


def trust_of(rules: Sequence[Precision]) -> Trust:
    right, wrong = sum(x.confirmed for x in rules), sum(x.unnecessary for x in rules)
    unnecessary = sum(x.preemptions_unnecessary for x in rules)
    judged = unnecessary + sum(x.preemptions_confirmed for x in rules)
    return Trust(
        rules=tuple(rules),
        isolations_right=share(right, right + wrong),
        preemptions=sum(x.preemptions for x in rules),
        preemptions_unnecessary=share(unnecessary, judged),
        pending=sum(x.preemptions_pending for x in rules),
    )
