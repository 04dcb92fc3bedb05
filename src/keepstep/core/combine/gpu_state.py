"""Combination rules of an accelerator's state: what a tool reads from the card, beside what the driver printed of it. Pure."""

from collections.abc import Sequence

from keepstep.core.catalog.row import Remedy, Verdict
from keepstep.core.combine.company import MEMORY, replaced
from keepstep.core.incident import Urgency
from keepstep.core.observation import kind_of
from keepstep.core.signal import Context, Rule, Signal, by_part

COUNTED = ("gpu.none", "gpu.count")
LOST = ("gpu.lost", "gpu.fallen_off_bus", "gpu.init")
REMAPS = ("gpu.remap.pending", "gpu.remap.failed", "gpu.retired.pending", "gpu.memory.unrepairable")


def _contained(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The card counts an uncorrectable error whether it was contained or not; Xid 94 says that it was."""

    graded = []
    for mine in by_part(signals, context).values():
        keys = {x.key for x in mine if x.row.verdict is not Verdict.BENIGN}
        if "xid.94" in keys and not keys.intersection((*MEMORY, *REMAPS)):
            graded += [(x, _softened(x)) for x in mine if x.key == "gpu.ecc.dbe" and x.row.verdict is Verdict.FAULTY]
    return replaced(signals, graded)


def _softened(signal: Signal) -> Signal:
    return signal.graded(
        "Xid 94 of the card says that it was contained: only the program ends",
        verdict=Verdict.SUSPECT,
        failure_class="gpu.memory.contained",
        isolate=False,
        urgency=Urgency.NONE,
        remedy=Remedy.NONE,
        confidence=0.7,
    )


def _counted(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Too few devices, or none: the card that is named as lost beside it is the one that is missing."""
    del context
    lost = {
        s.seen.node: s.seen.part
        for s in signals
        if kind_of(s.seen.part) == "gpu"
        and s.row.failure_class in LOST
        and s.row.verdict in (Verdict.SUSPECT, Verdict.FAULTY)
    }
    graded = [
        (s, s.harmless(f"{lost[s.seen.node]} is the one that is missing"))
        for s in signals
        if s.key in COUNTED and s.seen.node in lost
    ]
    return replaced(signals, graded)


RULES: tuple[Rule, ...] = (
    Rule(
        name="gpu_contained",
        text="A counted error that Xid 94 calls contained ends only the program.",
        apply=_contained,
    ),
    Rule(
        name="gpu_counted", text="A card that is missing in the count is the one that is named as lost.", apply=_counted
    ),
)
