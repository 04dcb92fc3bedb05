"""The read side of drills. Beside ``queries``, which has the list of questions; must not change anything."""

import msgspec

from keepstep.core.access import Principal
from keepstep.core.drill import KINDS, Drill, DrillState
from keepstep.core.ids import DrillId, IncidentId
from keepstep.core.world import World
from keepstep.server import drill_views as views
from keepstep.server.desk import NAMED_MAX, Desk, UnknownSubject, action_view
from keepstep.server.paging import LIMIT_MAX, page
from keepstep.server.policy_file import read_policy
from keepstep.server.views import IncidentReport
from keepstep.wire.requests import BeginDrill


def drills(desk: Desk, job: str = "", state: str = "", cursor: str = "", limit: int = LIMIT_MAX) -> views.Drills:
    """Newest first: those that are under way and the last ones that are over. Raises ValueError for no state of a drill."""
    if state and state not in {one.value for one in DrillState}:
        raise ValueError(f"{state!r} is no state of a drill; there are {', '.join(one.value for one in DrillState)}")
    fitting = [
        drill
        for drill in reversed(desk.world.drills.values())
        if job in ("", drill.job) and state in ("", drill.state.value) and desk.sees(drill.job)
    ]
    found = page(fitting, len(fitting), cursor, limit)
    return views.Drills(drills=tuple(map(drill_view, found.items)), next=found.next, total=found.total)


def drill(desk: Desk, id: str) -> views.DrillReport:
    found = desk.world.drills.get(DrillId(id))
    if found is None or not desk.sees(found.job):
        known = [x.id for x in desk.world.drills.values() if desk.sees(x.job)][-NAMED_MAX:]
        raise UnknownSubject(f"there is no drill {id!r}; the newest are: {', '.join(known) or 'none'}")
    policy = desk.registry.policy
    limits = read_policy(policy.overrides if policy is not None else "").drills
    return views.DrillReport(
        drill=drill_view(found),
        does=KINDS[found.kind],
        times=_times(desk, found),
        limits=views.DrillLimits(detect_s=limits.detect_s, recover_s=limits.recover_s, wait_s=limits.wait_s),
        actions=tuple(action_view(desk, found.asked_s, step) for step in desk.history.steps.get(found.id, [])),
    )


def drill_of(desk: Desk, incident: str) -> views.DrillView | None:
    """The drill that led to an incident; None where none did, or where it is not known any more."""
    found = (x for x in reversed(desk.world.drills.values()) if x.incident == incident and desk.sees(x.job))
    return next(map(drill_view, found), None)


def drill_view(drill: Drill) -> views.DrillView:
    return views.DrillView(
        id=drill.id,
        job=drill.job,
        kind=drill.kind,
        by=drill.by,
        state=drill.state.value,
        rank=drill.rank if drill.injected_s is not None else drill.wanted_rank,
        node=drill.node or "",
        asked_s=drill.asked_s,
        injected_s=drill.injected_s,
        ended_s=None if drill.open else drill.entered_s,
        incident=drill.incident or "",
        marks=drill.marks,
        reason=drill.reason,
    )


def _times(desk: Desk, drill: Drill) -> views.DrillTimes:
    if drill.incident is None or drill.injected_s is None:
        return views.DrillTimes()
    known = desk.world.incidents.get(IncidentId(drill.incident))
    if known is not None:
        down_s, lost = (known.downtime_s, known.lost_steps) if not known.open else (None, None)
        return views.DrillTimes(detected_after_s=known.opened_s - drill.injected_s, downtime_s=down_s, lost_steps=lost)
    kept = desk.archived("incident", drill.incident)
    if kept is None:
        return views.DrillTimes()
    line = msgspec.msgpack.decode(kept, type=IncidentReport).incident
    return views.DrillTimes(
        detected_after_s=line.opened_s - drill.injected_s, downtime_s=line.downtime_s, lost_steps=line.lost_steps
    )


def drill_asked_for(world: World, request: BeginDrill, by: Principal) -> str:
    """The newest drill that this request of ``by`` led to; empty where it is not known any more."""
    asked = (request.job, request.kind, request.rank, by.name)
    found = (x.id for x in reversed(world.drills.values()) if (x.job, x.kind, x.wanted_rank, x.by) == asked)
    return next(found, "")
