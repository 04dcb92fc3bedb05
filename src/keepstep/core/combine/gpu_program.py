"""Combination rules of codes that a program causes as often as a card: which of the two it was, and what is an echo. Pure."""

from collections.abc import Sequence

import msgspec

from keepstep.core.catalog.row import Remedy, Scope, Verdict
from keepstep.core.combine.company import (
    DAY_S,
    ECHO_S,
    LOST_S,
    MEMORY,
    Moments,
    beside,
    each,
    is_one_of,
    named,
    on_node,
    on_part,
    replaced,
    when,
)
from keepstep.core.figures import whole
from keepstep.core.incident import Cause, Urgency
from keepstep.core.signal import Context, Rule, Signal, place_of

SAME_MOMENT_S = 5.0
REMAPS = ("xid.63", "xid.64", "gpu.remap.pending", "gpu.remap.failed", "xid.156")
TEARDOWN = ("xid.137", "xid.94", "xid.45", "xid.43", "sxid.12028", "sxid.22013")


def _memory_errors(signals: Sequence[Signal], context: Context) -> list[Signal]:
    return each(signals, context, ("xid.48", "xid.94", "xid.95"), _memory_error, LOST_S)


def _memory_error(signal: Signal, near: list[Signal]) -> Signal:
    if signal.key == "xid.94":
        uncontained = [other for other in near if other.key == "xid.95" and beside(signal, other, ECHO_S)]
        return signal.harmless("the uncontained error (Xid 95) of the same card counts") if uncontained else signal
    if signal.key == "xid.48" and (remap := next((x for x in near if is_one_of(x, REMAPS)), None)):
        return signal.graded(
            f"{named(remap)} beside it: the row is to be replaced, so drain and reset",
            remedy=Remedy.RESET_DEVICE,
            confidence=0.97,
        )
    return signal


def _sympathetic_copies(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Uncontained errors of several cards at once: the first is the source, the others read what it had lost."""
    first: dict[str, Signal] = {}
    graded = []
    for signal in sorted((s for s in signals if s.key == "xid.95"), key=when):
        source = first.setdefault(signal.seen.node, signal)
        if signal is not source and signal.seen.part != source.seen.part and beside(signal, source, ECHO_S):
            graded.append(
                (
                    signal,
                    signal.graded(
                        f"a copy of the error of {source.seen.part}, which came first",
                        verdict=Verdict.WATCH,
                        isolate=False,
                        urgency=Urgency.NONE,
                        remedy=Remedy.NONE,
                        confidence=0.5,
                    ),
                )
            )
    return replaced(signals, graded)


def _program_faults(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """13 and 31: one program touches many cards; a broken card fails at the same place again, whatever runs on it."""
    faults = [s for s in signals if s.key in ("xid.13", "xid.31") and s.row.verdict is not Verdict.BENIGN]
    if not faults:
        return list(signals)
    everywhere = Moments(faults, lambda s: s.key)
    return replaced(signals, [(s, _program_fault(s, everywhere.around(s, DAY_S), context)) for s in faults])


def _program_fault(signal: Signal, lately: list[Signal], context: Context) -> Signal:
    cards = {place_of(x, context) for x in lately}
    if len(cards) > 1:
        return signal.graded(f"on {len(cards)} cards: the program")
    again = [x for x in lately if x is not signal]
    if not again:
        return signal
    if signal.key == "xid.31":
        return _card_suspected(signal, "twice within a day on this card and on no other", "gpu.memory.mmu")
    same = sorted(_units(signal).intersection(*(_units(x) for x in again)))
    return _card_suspected(signal, f"again at {same[0]} of the same card", "gpu.compute_engine") if same else signal


def _units(signal: Signal) -> set[str]:
    attributes = signal.seen.attributes
    return {unit for unit in attributes.get("units", attributes.get("unit", "")).split(",") if unit}


def _card_suspected(signal: Signal, because: str, failure_class: str) -> Signal:
    return signal.graded(
        because,
        scope=Scope.CARD,
        cause=Cause.DEVICE,
        verdict=Verdict.SUSPECT,
        failure_class=failure_class,
        remedy=Remedy.VALIDATE,
        confidence=0.6,
    )


def _removed_channels(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """45 follows another error of its card or its node, or the end of its process: a busy node prints many."""
    removed = [s for s in signals if s.key == "xid.45" and s.row.verdict is not Verdict.BENIGN]
    if not removed:
        return list(signals)
    others = [s for s in signals if s.key.startswith(("xid.", "nvlink5.", "sxid.")) and s.key != "xid.45"]
    codes: dict[str, set[str]] = {}
    for other in others:
        codes.setdefault(other.seen.node, set()).add(other.key.split(".")[1])
    of_card: dict[tuple[str, str], int] = {}
    for signal in removed:
        card = place_of(signal, context)
        of_card[card] = of_card.get(card, 0) + 1
    moments = Moments(others, on_node)
    graded = []
    for signal in removed:
        if told := signal.seen.attributes.get("caused_by"):
            fresh = _told_cause(signal, told, codes.get(signal.seen.node, set()), context)
        else:
            fresh = _removed(signal, moments.around(signal, ECHO_S), of_card, context)
        graded.append((signal, fresh))
    return replaced(signals, graded)


def _removed(signal: Signal, near: list[Signal], of_card: dict[tuple[str, str], int], context: Context) -> Signal:
    mine = place_of(signal, context)
    cause = next((x for x in near if place_of(x, context) == mine), near[0] if near else None)
    if cause is not None:
        return signal.harmless(f"an echo of {named(cause)}")
    if len(of_card) > 1:
        return signal.harmless(f"on {len(of_card)} cards and nothing else: a program was ended")
    if of_card[mine] > 1:
        because = "alone, and again: programs that end, or the fabric manager"
        return signal.graded(because, remedy=Remedy.RESTART_SERVICE)
    return signal


def _told_cause(signal: Signal, told: str, codes: set[str], context: Context) -> Signal:
    """The driver names the code before it. Where that one is not in the evidence, this line is all that is left of it."""
    if told in codes or told == "45" or (code := whole(told)) is None:
        return signal.harmless(f"an echo of Xid {told}, as the driver says itself")
    key = f"nvlink5.{told}" if 144 <= code <= 150 else f"xid.{told}"
    row = context.catalog.row(key)
    seen = msgspec.structs.replace(signal.seen, signal=key)
    return Signal(seen=seen, row=row, because=signal.because, shadow=signal.shadow).graded(
        f"the line of Xid {told} itself is not here: Xid 45 names it",
        urgency=Urgency.NOW,
        confidence=round(row.confidence * 0.8, 3),
    )


def _stopped_channels(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """43 says that a program was stopped: the error before it says why."""

    def grade(signal: Signal, near: list[Signal]) -> Signal:
        cause = next(
            (x for x in near if x.key.startswith(("xid.", "nvlink5.")) and x.key not in ("xid.43", "xid.45")), None
        )
        return (
            signal if cause is None else signal.graded(f"after {named(cause)}", verdict=Verdict.WATCH, confidence=0.5)
        )

    return each(signals, context, ("xid.43",), grade, ECHO_S)


def _teardown(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A program that is killed inside a collective over NVLink prints refused accesses on every card, and no card is broken."""
    refusals = {key: [s for s in signals if s.key == key] for key in ("sxid.12028", "xid.137")}
    if not all(refusals.values()):
        return list(signals)
    refused = [Moments(some, on_node) for some in refusals.values()]
    broken = Moments((s for s in signals if _no_end_prints(s)), on_part(context))
    graded = []
    for signal in signals:
        if not is_one_of(signal, TEARDOWN) or not all(some.count(signal, SAME_MOMENT_S) for some in refused):
            continue
        if any(x is not signal for x in broken.around(signal, ECHO_S)):
            continue
        because = "refused accesses at card and switch in one moment: a program was ended"
        graded.append((signal, signal.harmless(because)))
    return replaced(signals, graded)


def _no_end_prints(signal: Signal) -> bool:
    """What no end of a program prints: it says that the card is truly broken."""
    return signal.key in (*MEMORY, "xid.63") or signal.key.startswith("nvlink5.")


RULES: tuple[Rule, ...] = (
    Rule(
        name="gpu_teardown",
        text="137, 94, 43, 45 and SXid 12028 of cards and switches in one moment are a program's end.",
        apply=_teardown,
    ),
    Rule(
        name="gpu_memory",
        text="48 beside 63 or 64 means drain and reset; 94 beside 95 is its echo.",
        apply=_memory_errors,
    ),
    Rule(name="gpu_sympathetic", text="95 on several cards at once is the first one's.", apply=_sympathetic_copies),
    Rule(
        name="gpu_program",
        text="13 again at one GPC and TPC, or 31 again on one card only, is the card's, else the program's.",
        apply=_program_faults,
    ),
    Rule(
        name="gpu_removed_channels",
        text="45 beside another error is its echo; alone it is watched, however often programs end.",
        apply=_removed_channels,
    ),
    Rule(
        name="gpu_stopped_channels",
        text="43 after another error of its card is its consequence.",
        apply=_stopped_channels,
    ),
)
