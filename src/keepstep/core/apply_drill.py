"""Applies what concerns drills, beside ``apply``. The only writer of a drill's state. Must not decide (see rehearse.py)."""

from keepstep.core import decision as d
from keepstep.core import drill as table
from keepstep.core.drill import Drill, DrillKind, DrillState
from keepstep.core.errors import IllegalMove
from keepstep.core.ids import DrillId, JobId
from keepstep.core.intents import Inject
from keepstep.core.world import World

_KEPT = 200
"""Drills in the World; older ones are in the journal."""


def apply_drill(world: World, change: d.OpenDrill | d.MoveDrill | d.LinkDrill, at_s: float) -> None:
    match change:
        case d.OpenDrill():
            open_drill(world, change.job, change.kind, change.by, at_s)
        case d.LinkDrill():
            world.drills[change.drill].incident = change.incident
            world.incidents[change.incident].drill = change.drill
        case d.MoveDrill():
            move_drill(world, world.drills[change.drill], change, at_s)


def open_drill(world: World, job: JobId, kind: DrillKind, by: str, at_s: float, *, rank: int | None = None) -> None:
    item = Drill(
        id=DrillId(f"drill-{world.next_drill:04d}"), job=job, kind=kind, by=by, asked_s=at_s, entered_s=at_s,
        wanted_rank=rank,
    )  # fmt: skip
    world.next_drill += 1
    world.drills[item.id] = item
    world.open_drills[item.id] = None
    over = [x.id for x in world.drills.values() if not x.open]
    for old in over[: max(0, len(world.drills) - _KEPT)]:
        del world.drills[old]


def move_drill(world: World, item: Drill, change: d.MoveDrill, at_s: float) -> None:
    if change.to not in table.TRANSITIONS[item.state]:
        raise IllegalMove(f"drill {item.id}: {item.state.value} -> {change.to.value} is not in the table")
    item.state, item.entered_s = change.to, at_s
    if item.incident is not None and (change.to is DrillState.INJECTED or item.refused):
        world.incidents[item.incident].drill = None  # it was another's, or nobody's
        item.incident = None
    elif change.to is DrillState.INJECTED:
        item.node, item.rank, item.generation = change.node, change.rank, change.generation
        item.injected_s = item.watched_s = at_s
    if not item.open:
        item.marks, item.reason = change.marks, change.reason
        world.open_drills.pop(item.id)
        _withdraw(world, item.id)


def _withdraw(world: World, drill: DrillId) -> None:
    """An order that has not arrived must not do so now: what it does would be taken for a fault that nobody ordered."""
    for number in [n for n, x in world.orders.items() if isinstance(x.intent, Inject) and x.intent.drill == drill]:
        del world.orders[number]
