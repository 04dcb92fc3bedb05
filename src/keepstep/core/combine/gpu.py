"""Combination rules of what the accelerator's driver prints: cause and echo, what they share, and what a repeat means. Pure.

Each rule reads all signals at hand and grades some of them. Nothing is joined across a boot, and times only where one clock
gave both.
"""

from collections.abc import Hashable, Sequence

import msgspec

from keepstep.core.catalog.row import Remedy, Scope, Verdict
from keepstep.core.combine import gpu_program, gpu_state
from keepstep.core.combine.company import (
    DAY_S,
    ECHO_S,
    LOST_S,
    MEMORY,
    Moments,
    beside,
    fatal_card,
    is_one_of,
    named,
    on_node,
    on_part,
    replaced,
    when,
)
from keepstep.core.combine.nearness import boot_of
from keepstep.core.incident import Cause
from keepstep.core.observation import kind_of, name_of
from keepstep.core.signal import Context, Rule, Signal, by_part

MANY_CARDS = 3
MANY_FATAL = 5
MANY_MEMORY = 3
"""Uncorrectable errors of one card within a day: its memory degrades, and each remap only mends one row."""

FOLLOWS_LOSS = (
    "13",
    "31",
    "32",
    "43",
    "44",
    "45",
    "46",
    "48",
    "61",
    "62",
    "74",
    "94",
    "95",
    "109",
    "119",
    "120",
    "137",
    "143",
    "158",
)
OF_ONE_NODE = (
    "xid.46",
    "xid.62",
    "xid.79",
    "xid.109",
    "xid.119",
    "xid.120",
    "xid.143",
    "xid.158",
    "xid.169",
    "nvrm.init_failed",
    "nvrm.probe_failed",
)
UNPLACED = (
    "nvrm.gsp_timeout.unplaced",
    "nvrm.reset_required",
    "nvrm.uvm_fatal",
    "amdgpu.hang.unplaced",
    "nvrm.gpu_lost",
    "nvrm.probe_failed.unplaced",
    "nvrm.init_failed.unplaced",
)
REASONS = {
    "nvrm.gsp_timeout.unplaced": "nvrm.gsp_timeout",
    "nvrm.gpu_lost": "xid.79",
    "nvrm.probe_failed.unplaced": "nvrm.probe_failed",
    "nvrm.init_failed.unplaced": "nvrm.init_failed",
}
"""What names no card, and the row of the same where the card is known."""
CLEARED_BY = {"xid.163": "xid.162", "sxid.10004": "sxid.10005"}


# ---- a card that is gone


def _lost_cards(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """One card that falls off the bus is one fault: its other codes, its other functions and later complaints are echoes."""
    lost = [signal for signal in signals if signal.key == "xid.79"]
    if not lost:
        return list(signals)

    def group(signal: Signal) -> tuple[str, str, str]:
        seen = signal.seen
        part = context.parts.canonical(seen.node, seen.part)
        return seen.node, f"gpu/{name_of(part)}" if kind_of(part) == "pci" else part, boot_of(signal)

    losses = Moments(lost, group)
    graded = []
    for signal in signals:
        of_the_bus = kind_of(signal.seen.part) == "pci" and not signal.key.startswith("gpu.")
        if not (signal.key == "xid.79" or _follows_loss(signal.key) or of_the_bus):
            continue
        sources = losses.around(signal, LOST_S)
        source = next((x for x in sources if x is not signal and _first(x, signal)), None)
        if source is not None:
            graded.append((signal, signal.harmless(f"an echo of the loss of {source.seen.part}")))
    return replaced(signals, graded)


def _follows_loss(key: str) -> bool:
    return (key.startswith("xid.") and key.split(".")[1] in FOLLOWS_LOSS) or key.startswith(("nvrm.", "nvlink5."))


def _first(lost: Signal, signal: Signal) -> bool:
    """Of two losses of one card the earlier one is the fault; of anything else the loss is."""
    return signal.key != "xid.79" or when(lost) < when(signal)


def _without_place(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """What the driver says without naming the card belongs to the card that it names beside it.

    A recovery action (154) names the card and not the reason: there the words become the card's own fault.
    """
    placed = Moments((s for s in signals if kind_of(s.seen.part) == "gpu" and _names_a_card(s)), on_node)
    graded = []
    for signal in signals:
        if signal.key not in UNPLACED or signal.seen.part:
            continue
        near = placed.around(signal, LOST_S)
        if not near:
            continue
        reasons = [x for x in near if not x.key.startswith("xid.154")]
        cards = {context.parts.canonical(x.seen.node, x.seen.part) for x in near}
        if reasons or len(cards) > 1 or signal.key not in REASONS:
            owner = (reasons or near)[0]
            graded.append((signal, signal.harmless(f"about {owner.seen.part}, which {named(owner)} names")))
        else:
            graded.append((signal, _placed(signal, near[0], context)))
    return replaced(signals, graded)


def _names_a_card(signal: Signal) -> bool:
    return signal.row.verdict is Verdict.FAULTY or signal.key.startswith(("xid.154.", "amdgpu.reset", "amdgpu.hang"))


def _placed(signal: Signal, owner: Signal, context: Context) -> Signal:
    seen = msgspec.structs.replace(signal.seen, part=owner.seen.part)
    return Signal(
        seen=seen,
        row=context.catalog.row(REASONS[signal.key]),
        because=(*signal.because, f"{named(owner)} names the card"),
        shadow=signal.shadow,
    )


# ---- links


def _links(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Errors of many cards' links to one switch are the switch's, or the fabric's, once."""
    del context
    mine = [s for s in signals if s.key.startswith("nvlink5.") or s.key == "xid.136" or s.key.startswith("xid.74")]
    broken = Moments((s for s in mine if s.row.verdict is Verdict.FAULTY), on_node)
    switches = Moments((s for s in signals if s.key.startswith("sxid.") and s.row.verdict is Verdict.FAULTY), on_node)
    graded = []
    for signal in mine:
        near = broken.around(signal, ECHO_S)
        switch = next(iter(switches.around(signal, ECHO_S)), None)
        fresh = _link(signal, near, switch)
        if fresh is not signal:
            graded.append((signal, fresh))
    return replaced(signals, graded)


def _link(signal: Signal, near: list[Signal], switch: Signal | None) -> Signal:
    """One link's error in the company of the links that broke at the same moment."""
    cards = dict.fromkeys(x.seen.part for x in near)
    if signal.key.endswith((".contained", ".nonfatal", ".poison")):
        source = switch or next(iter(near), None)
        return signal if source is None else signal.harmless(f"a transfer lost when {source.seen.part} lost a link")
    if signal.row.verdict is not Verdict.FAULTY:
        return signal
    if switch is not None:
        because = f"the switch reports it: {switch.key} of {switch.seen.part}"
        return signal.graded(because, verdict=Verdict.SUSPECT, isolate=False, confidence=0.5)
    if len(cards) >= MANY_CARDS:
        because = f"{len(cards)} cards at once: what they share"
        return signal.graded(because, scope=Scope.NODE, failure_class="nvlink.fabric")
    source = next((x for x in near if not x.key.endswith(".peer") and x.seen.part != signal.seen.part), None)
    if signal.key.endswith(".peer") and source is not None:
        because = f"the other end may be {source.seen.part}, which says so of itself ({named(source)})"
        return signal.graded(because, verdict=Verdict.SUSPECT, isolate=False, confidence=0.5)
    return signal


# ---- what clears, what repeats, what the driver says itself


def _cleared(signals: Sequence[Signal], context: Context) -> list[Signal]:
    group = on_part(context)
    newest: dict[tuple[Hashable, str], Signal] = {}
    for signal in signals:
        if signal.key in CLEARED_BY.values():
            key = (group(signal), signal.key)
            if key not in newest or when(signal) > when(newest[key]):
                newest[key] = signal
    graded = []
    for signal in signals if newest else ():
        clear = newest.get((group(signal), CLEARED_BY.get(signal.key, "")))
        if clear is not None and when(clear) >= when(signal):
            graded.append((signal, signal.harmless(f"cleared by {clear.key} after it")))
    return replaced(signals, graded)


def _one_moment(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The same code on many cards of a node at once is one fault of what they share, or one program's doing."""
    del context
    alike = [s for s in signals if is_one_of(s, OF_ONE_NODE)]
    moments = Moments(alike, lambda s: (s.key, on_node(s)))
    graded = []
    for signal in alike:
        parts = {x.seen.part for x in moments.around(signal, ECHO_S) if x.seen.part}
        if len(parts) < MANY_CARDS:
            continue
        because = f"on {len(parts)} cards of the node at once"
        if signal.key == "xid.109":
            fresh = signal.graded(
                because,
                scope=Scope.JOB,
                verdict=Verdict.SUSPECT,
                isolate=False,
                cause=Cause.APPLICATION,
                remedy=Remedy.NONE,
                confidence=0.5,
            )
        else:
            fresh = signal.graded(because, scope=Scope.NODE, cause=Cause.HOST_HARDWARE)
        graded.append((signal, fresh))
    return replaced(signals, graded)


def _repeated(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """What comes again although the card was reset or the node rebooted is not cured by doing it again."""
    fatal = [
        s for s in signals
        if fatal_card(s) and s.key.startswith(("xid.", "nvlink5.")) and not s.key.startswith("xid.154")
    ]  # fmt: skip

    def alike(signal: Signal) -> tuple[str, str, str]:
        seen = signal.seen
        return (
            seen.node,
            context.parts.canonical(seen.node, seen.part),
            "memory" if signal.key in MEMORY else signal.key,
        )

    boots: dict[tuple[str, str, str], set[str]] = {}
    for signal in fatal:
        boots.setdefault(alike(signal), set()).add(boot_of(signal))
    moments = Moments(fatal, alike)
    graded = []
    for signal in fatal:
        if (many := len(boots[alike(signal)])) > 1:
            remedy = Remedy.INSPECT if signal.key == "xid.79" else Remedy.REPLACE
            graded.append((signal, signal.graded(f"again after a reboot ({many} boots)", remedy=remedy)))
            continue
        lately = moments.count(signal, DAY_S)
        if lately >= (MANY_MEMORY if signal.key in MEMORY else MANY_FATAL):
            graded.append((signal, signal.graded(f"{lately} times within a day", remedy=Remedy.REPLACE)))
    return replaced(signals, graded)


def _recovery_action(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The driver knows better than a table what a card needs: its newest word is the remedy, and the other code the cause."""
    actions = {id(s) for s in signals if s.key.startswith("xid.154.")}
    if not actions:
        return list(signals)
    graded = []
    for own, mine in by_part(signals, context).items():
        newest = max((s for s in mine if id(s) in actions), key=when, default=None)
        if newest is None or not own[1]:
            continue
        causes = [
            s
            for s in mine
            if s.row.verdict is Verdict.FAULTY and not s.key.startswith("xid.154") and beside(newest, s, LOST_S)
        ]
        for signal in causes:
            if newest.key == "xid.154.none":
                fresh = signal.graded("the driver asks for nothing any more: validate", remedy=Remedy.VALIDATE)
            elif signal.row.remedy in (Remedy.REPLACE, Remedy.INSPECT):
                continue
            else:
                fresh = signal.graded(
                    f"the driver's own recovery action: {newest.key.removeprefix('xid.154.')}", remedy=newest.row.remedy
                )
            graded.append((signal, fresh))
        for signal in mine:
            if id(signal) in actions and signal.row.verdict is Verdict.FAULTY and (causes or signal is not newest):
                because = f"about {named(causes[0])}" if causes else f"{newest.key} came after it"
                graded.append((signal, signal.graded(because, confidence=0.5)))
    return replaced(signals, graded)


RULES: tuple[Rule, ...] = (
    *gpu_program.RULES,
    *gpu_state.RULES,
    Rule(
        name="gpu_lost",
        text="79 and what the same card or its other functions say after it are one fault.",
        apply=_lost_cards,
    ),
    Rule(
        name="gpu_without_place",
        text="What names no card belongs to the card that is named beside it.",
        apply=_without_place,
    ),
    Rule(name="gpu_cleared", text="162 clears 163, as SXid 10005 clears 10004.", apply=_cleared),
    Rule(
        name="gpu_links",
        text="74, 136 and 144 to 150 of many cards at once, or beside a switch's error, are what they share.",
        apply=_links,
    ),
    Rule(
        name="gpu_one_moment",
        text="46, 62, 79, 109, 119, 120 or 143 on three or more cards of a node at once is one fault.",
        apply=_one_moment,
    ),
    Rule(
        name="gpu_repeated",
        text="A fatal code again after a reboot, or five times a day (48, 64, 95, 140: three), ends in a replacement.",
        apply=_repeated,
    ),
    Rule(
        name="gpu_recovery_action",
        text="The driver's own recovery action, 154, is the remedy, whatever the table says.",
        apply=_recovery_action,
    ),
)
